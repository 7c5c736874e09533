//! The alphabet of byte-level BPE.

use std::collections::HashMap;

/// Printable bytes stand for themselves, the others for the characters from U+0100 on, in order.
pub fn bytes_of_char() -> HashMap<char, u8> {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 0x100;
    (0..=255u8)
        .map(|byte| {
            if printable(byte) {
                return (char::from(byte), byte);
            }
            next += 1;
            (char::from_u32(next - 1).expect("below U+0200"), byte)
        })
        .collect()
}
