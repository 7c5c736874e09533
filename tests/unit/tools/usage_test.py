"""Every script of ours: --help says how it is used and does nothing, and a flag that it does not know is an error."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
FOLDERS = ["tools", "tools/dev", "tools/cluster", "tests/e2e"]


def scripts():
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).iterdir()):
            if path.is_file() and (os.access(path, os.X_OK) or "\nusage: " in path.read_text()):
                yield path


class Usage(unittest.TestCase):
    def run_with(self, script, *arguments):
        """In a folder that is empty, with nothing to call but what a shell has: who would do something fails."""
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, script] if script.suffix == ".py" else [script]
            ended = subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=60,
                                   env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}, stdin=subprocess.DEVNULL)
            self.assertEqual(os.listdir(folder), [], script)
            return ended

    def test_there_are_scripts(self):
        self.assertGreater(len(list(scripts())), 25)

    def test_help_is_a_usage_and_nothing_else(self):
        for script in scripts():
            for flag in ("--help", "-h"):
                ended = self.run_with(script, flag)
                with self.subTest(script=script.name, flag=flag):
                    self.assertEqual((ended.returncode, ended.stderr), (0, ""))
                    self.assertIn(f"usage: {script.name}", ended.stdout)

    def test_a_flag_that_is_not_known_is_an_error(self):
        for script in scripts():
            if script.name in ("run", "attack"):
                continue  # They hand flags on: to pytest, and to argparse.
            ended = self.run_with(script, "--no-such-flag")
            with self.subTest(script=script.name):
                self.assertEqual(ended.returncode, 2, ended.stderr)


if __name__ == "__main__":
    unittest.main()
