"""Authorities and certificates of tests, as files and as what Python's clients take."""

import datetime
import pathlib
import ssl

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

LONG_AGO = datetime.datetime(2001, 1, 1, tzinfo=datetime.timezone.utc)


class Authority:
    """Signs certificates, each of which becomes three files: NAME.pem, NAME.key and NAME.ca."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.ca = trustme.CA()

    def pem(self):
        return self.ca.cert_pem.bytes()

    def issue(self, name, *hosts, expired=False, days=None, path=None, in_days=None, purposes=None):
        """The path without an ending. Of `hosts`, or of NAME alone. For centuries, unless `expired` or for `days`, or
        from `in_days` on. For clients and servers, unless `purposes` says otherwise."""
        times = {"not_before": LONG_AGO, "not_after": LONG_AGO + datetime.timedelta(days=1)} if expired else {}
        now = datetime.datetime.now(datetime.timezone.utc)
        if days:
            times = {"not_after": now + datetime.timedelta(days=days)}
        if in_days:
            times = {"not_before": now + datetime.timedelta(days=in_days)}
        made = self.ca.issue_cert(*(hosts or [name]), **times)
        path = path or self.folder / name
        path.with_suffix(".key").write_bytes(made.private_key_pem.bytes())
        chain = b"".join(one.bytes() for one in made.cert_chain_pems)
        path.with_suffix(".pem").write_bytes(self.restricted(chain, purposes) if purposes else chain)
        path.with_suffix(".ca").write_bytes(self.pem())
        return path

    def restricted(self, pem, purposes):
        """That certificate for `purposes` alone."""
        whole = x509.load_pem_x509_certificate(pem)
        made = x509.CertificateBuilder(whole.issuer, whole.subject, whole.public_key(), whole.serial_number,
                                       whole.not_valid_before_utc, whole.not_valid_after_utc)
        for one in whole.extensions:
            limited = isinstance(one.value, x509.ExtendedKeyUsage)
            made = made.add_extension(x509.ExtendedKeyUsage(purposes) if limited else one.value, one.critical)
        key = serialization.load_pem_private_key(self.ca.private_key_pem.bytes(), None)
        return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def client_flags(path, asks=True):
    """Of a router that shows that certificate to clients, and asks for theirs."""
    return [f"--tls-cert={path}.pem", f"--tls-key={path}.key"] + ([f"--tls-client-ca={path}.ca"] if asks else [])


def fleet_flags(path, name="fleet.test"):
    return [f"--fleet-tls-cert={path}.pem", f"--fleet-tls-key={path}.key", f"--fleet-tls-ca={path}.ca",
            f"--fleet-tls-name={name}"]


def context(authority, path=None, protocol="http/1.1"):
    """Of a client that believes `authority` and shows the certificate at `path`, or none."""
    made = ssl.create_default_context(cadata=authority.pem().decode())
    made.set_alpn_protocols([protocol])
    # httpx says it again for each connection; SSL_new of another thread would copy what that frees.
    made.set_alpn_protocols = lambda protocols: None
    if path:
        made.load_cert_chain(f"{path}.pem", f"{path}.key")
    return made
