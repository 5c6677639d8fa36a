//! A checksum inside a binary file. It detects damage before a parser trusts any length or offset.
//!
//! The file contains the text `fnv1a64:` followed by 16 hexadecimal digits (in a store: a value in the footer). The
//! digits are the 64-bit FNV-1a hash of the whole file with these digits replaced by zeros. If the text occurs several
//! times, the last one counts.

/// The placeholder of the checksum in a file that is not sealed yet.
pub(crate) const PLACEHOLDER: &str = "fnv1a64:0000000000000000";

const MARK: &[u8] = b"fnv1a64:";
const DIGITS: usize = 16;

/// The result of checking a checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SealState {
    /// The file is unchanged.
    Intact,
    /// Some byte has changed.
    Broken,
    /// The checksum is missing: another program wrote the file, or its end is cut off.
    Missing,
}

/// The start value of a hash: the offset basis of the 64-bit variant.
pub(crate) const BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// Returns the 64-bit FNV-1a hash of `bytes`, continued from `hash` (Fowler, Noll, Vo; offset basis and prime of the
/// 64-bit variant).
pub(crate) fn fnv1a(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Returns the hash of the file, with the digits at `at` read as zeros, as 16 hexadecimal digits.
fn digits_without_seal(file: &[u8], at: usize) -> String {
    let hash = fnv1a(BASIS, &file[..at]);
    let hash = fnv1a(hash, &[b'0'; DIGITS]);
    format!("{:016x}", fnv1a(hash, &file[at + DIGITS..]))
}

/// Finds the position of the checksum's digits. `None` if the file has no checksum.
fn find_digits(file: &[u8]) -> Option<usize> {
    let at = file.windows(MARK.len()).rposition(|window| window == MARK)? + MARK.len();
    (at + DIGITS <= file.len()).then_some(at)
}

/// Replaces the placeholder with the checksum. A file without the placeholder stays unchanged.
pub(crate) fn seal_file(file: &mut [u8]) {
    if let Some(at) = find_digits(file) {
        let digits = digits_without_seal(file, at);
        file[at..at + DIGITS].copy_from_slice(digits.as_bytes());
    }
}

/// Compares the file with its checksum.
pub(crate) fn check_seal(file: &[u8]) -> SealState {
    match find_digits(file) {
        None => SealState::Missing,
        Some(at) if file[at..at + DIGITS] == *digits_without_seal(file, at).as_bytes() => SealState::Intact,
        Some(_) => SealState::Broken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_byte_is_found() {
        let mut file = format!("PAR1 some data {PLACEHOLDER} PAR1").into_bytes();
        assert_eq!(check_seal(&file), SealState::Broken, "a placeholder is no seal");
        seal_file(&mut file);
        assert_eq!(check_seal(&file), SealState::Intact);
        for at in 0..file.len() {
            let mut damaged = file.clone();
            damaged[at] ^= 1;
            assert_ne!(check_seal(&damaged), SealState::Intact, "byte {at}");
            assert_ne!(check_seal(&file[..at]), SealState::Intact, "cut at {at}");
        }
        assert_eq!(check_seal(b""), SealState::Missing);
    }

    #[test]
    fn the_hash_is_the_published_one() {
        assert_eq!(fnv1a(BASIS, b"foobar"), 0x8594_4171_f739_67e8);
    }
}
