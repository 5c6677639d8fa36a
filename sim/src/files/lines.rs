//! Line numbers of CSV records. The csv reader's own count lags by one after line ends of two characters, and by one
//! for every empty line that it skips.

/// Counts the lines of a text up to each record. The records are read in order.
#[derive(Debug, Clone)]
pub struct LineCounter<'a> {
    text: &'a [u8],
    at: usize,
    line: u64,
}

impl<'a> LineCounter<'a> {
    /// Starts at the first line of a text.
    #[must_use]
    pub fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0, line: 1 }
    }

    /// Returns the line number, from 1, of a record that the csv reader places at `byte`. Records must come in order.
    pub fn line_at_byte(&mut self, byte: u64) -> u64 {
        let byte = usize::try_from(byte).unwrap_or(usize::MAX).min(self.text.len());
        // The record begins after any line end or empty lines at `byte`.
        let rest = self.text.get(byte..).unwrap_or_default();
        let start = byte + rest.iter().take_while(|b| matches!(b, b'\n' | b'\r')).count();
        let passed = self.text.get(self.at..start).unwrap_or_default();
        self.line += passed.iter().filter(|b| **b == b'\n').count() as u64;
        self.at = start.max(self.at);
        self.line
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines_are_counted_whatever_ends_them() {
        for (text, expected) in [
            ("h,i\na,1\nb,2\n", [2, 3]),
            ("h,i\r\na,1\r\nb,2\r\n", [2, 3]),
            ("h,i\r\n\r\n\r\na,1\r\n\r\nb,2", [4, 6]),
            ("h,i\n\na,\"1\n2\"\nb,2\n", [3, 5]),
            ("\u{feff}h,i\r\na,1\r\nb,2\r\n", [2, 3]),
        ] {
            let mut reader = csv::Reader::from_reader(text.as_bytes());
            let mut lines = LineCounter::new(text.as_bytes());
            let found: Vec<u64> =
                reader.records().map(|r| lines.line_at_byte(r.unwrap().position().unwrap().byte())).collect();
            assert_eq!(found, expected, "{text:?}");
        }
    }
}
