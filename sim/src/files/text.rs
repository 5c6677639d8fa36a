//! Text files as users save them. Files that are not UTF-8 text are explained here, before a parser fails on their
//! first bytes.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Longest text that is read, 256 MiB: some ten million lines of measurements. A longer one (`/dev/zero` has no end)
/// would fill the machine's memory before a parser could refuse it.
pub const MOST_BYTES: u64 = 1 << 28;

/// UTF-8's byte order mark, which some editors write.
const MARK: &[u8] = &[0xef, 0xbb, 0xbf];

/// Reads the text of a file in UTF-8, without its byte order mark.
///
/// # Errors
/// The system's errors; a directory; a file of more than [`MOST_BYTES`], in UTF-16, or with a line that is not UTF-8.
pub fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(read_bytes(path)?).map_err(|error| {
        let sound = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes()[..sound].iter().filter(|byte| **byte == b'\n').count();
        Error::new(ErrorKind::InvalidData, format!("line {line} is not UTF-8, save it as UTF-8"))
    })
}

/// Reads the bytes of a possible text file without UTF-8's byte order mark, for readers that report invalid UTF-8 line
/// by line.
///
/// # Errors
/// The system's errors; a directory; a file of more than [`MOST_BYTES`], or in UTF-16.
pub fn read_bytes(path: &Path) -> Result<Vec<u8>> {
    if path.is_dir() {
        return Err(Error::new(ErrorKind::IsADirectory, "it is a directory, not a file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        let why = format!("it has more than {} MiB, cut it down", MOST_BYTES >> 20);
        return Err(Error::new(ErrorKind::FileTooLarge, why));
    }
    // UTF-16 has a byte order mark, or a zero byte in its first ASCII character. UTF-8 text has no zero byte.
    if matches!(bytes[..], [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [0, _, ..] | [_, 0, ..]) {
        return Err(Error::new(
            ErrorKind::InvalidData,
            "it is not UTF-8 but UTF-16 or no text at all, save it as UTF-8",
        ));
    }
    if bytes.starts_with(MARK) {
        bytes.drain(..MARK.len());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_byte_order_mark_is_skipped_and_what_is_no_text_is_said() {
        let dir = std::env::temp_dir().join(format!("coplace-text-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join("x.csv");
        let read = |bytes: &[u8]| {
            std::fs::write(&file, bytes).unwrap();
            super::read_text(&file).map_err(|error| error.to_string())
        };
        for (bytes, text) in [(&b""[..], ""), (b"a,\xc3\xa9\n", "a,\u{e9}\n"), (b"\xef\xbb\xbfa\n", "a\n"), (b"{", "{")]
        {
            assert_eq!(read(bytes).unwrap(), text);
        }
        let wide = "{}\n".encode_utf16();
        let little: Vec<u8> = wide.clone().flat_map(u16::to_le_bytes).collect();
        let big: Vec<u8> = wide.flat_map(u16::to_be_bytes).collect();
        for bytes in [&little, &big, &[&[0xff, 0xfe], &little[..]].concat(), &[&[0xfe, 0xff], &big[..]].concat()] {
            assert_eq!(
                read(bytes).unwrap_err(),
                "it is not UTF-8 but UTF-16 or no text at all, save it as UTF-8",
                "{bytes:?}"
            );
        }
        assert_eq!(read(b"a\nb\n\xe9\n").unwrap_err(), "line 3 is not UTF-8, save it as UTF-8");
        assert_eq!(super::read_text(&dir).unwrap_err().to_string(), "it is a directory, not a file");
        assert_eq!(super::read_bytes(&dir.join("gone")).unwrap_err().kind(), ErrorKind::NotFound);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_file_without_an_end_is_refused() {
        assert_eq!(
            super::read_bytes(Path::new("/dev/zero")).unwrap_err().to_string(),
            "it has more than 256 MiB, cut it down"
        );
    }
}
