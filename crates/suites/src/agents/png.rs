//! Reads the size of a PNG image from its first bytes. Decodes nothing else.

const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

/// Width and height, if these bytes are a PNG.
pub fn size(bytes: &[u8]) -> Option<(u32, u32)> {
    let head = bytes.strip_prefix(SIGNATURE)?;
    // A chunk starts with its length and kind. The first chunk is always IHDR.
    let body = head.get(4..)?.strip_prefix(b"IHDR")?;
    let number = |at: usize| Some(u32::from_be_bytes(body.get(at..at + 4)?.try_into().ok()?));
    Some((number(0)?, number(4)?))
}

/// The first bytes of an image of that size.
#[cfg(test)]
pub fn of_size(width: u32, height: u32) -> Vec<u8> {
    let parts: [&[u8]; 5] =
        [SIGNATURE, &13u32.to_be_bytes(), b"IHDR", &width.to_be_bytes(), &height.to_be_bytes()];
    parts.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_png_has_a_size() {
        assert_eq!(size(&of_size(640, 480)), Some((640, 480)));
        assert_eq!(size(&of_size(640, 480)[..20]), None);
        assert_eq!(size(b"GIF89a"), None);
    }
}
