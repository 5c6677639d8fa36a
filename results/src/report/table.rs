//! Aligned text: tables, key-value blocks, headings.

use std::fmt::Write as _;

/// Where a column's cells lean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A text table: a header, a rule, rows; two spaces between columns, no trailing blanks.
#[derive(Debug, Clone)]
pub struct Table {
    header: Vec<String>,
    align: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column heads; every column but the first leans right (the first names the row).
    #[must_use]
    pub fn new<S: Into<String>>(header: impl IntoIterator<Item = S>) -> Self {
        let header: Vec<String> = header.into_iter().map(Into::into).collect();
        let align = (0..header.len()).map(|i| if i == 0 { Align::Left } else { Align::Right }).collect();
        Self { header, align, rows: Vec::new() }
    }

    /// Sets how one column leans; columns count from 0, others are ignored.
    #[must_use]
    pub fn align(mut self, column: usize, align: Align) -> Self {
        if let Some(slot) = self.align.get_mut(column) {
            *slot = align;
        }
        self
    }

    /// Adds a row; missing cells are blank, cells beyond the header are dropped.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let mut row: Vec<String> = cells.into_iter().map(Into::into).collect();
        row.resize(self.header.len(), String::new());
        self.rows.push(row);
    }

    /// Takes those of the columns out that say the same in every one of several rows; their heads with what they say.
    pub fn take_common(&mut self, columns: &[usize]) -> Vec<(String, String)> {
        let mut taken = Vec::new();
        for &column in columns.iter().rev() {
            let mut cells = self.rows.iter().filter_map(|row| row.get(column));
            let Some(first) = cells.next().cloned().filter(|_| self.rows.len() > 1) else { continue };
            if !cells.all(|cell| *cell == first) {
                continue;
            }
            self.align.remove(column);
            self.rows.iter_mut().for_each(|row| drop(row.remove(column)));
            taken.push((self.header.remove(column), first));
        }
        taken.reverse();
        taken
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as text, one line per row, ending in a line break.
    #[must_use]
    pub fn render(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.chain([self.header[column].chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        let mut text = String::new();
        self.line(&mut text, &self.header, &widths);
        let rule: Vec<String> = widths.iter().map(|w| "-".repeat(*w)).collect();
        self.line(&mut text, &rule, &widths);
        for row in &self.rows {
            self.line(&mut text, row, &widths);
        }
        text
    }

    fn line(&self, text: &mut String, cells: &[String], widths: &[usize]) {
        let mut line = String::new();
        for ((cell, width), align) in cells.iter().zip(widths).zip(&self.align) {
            let blanks = " ".repeat(width.saturating_sub(cell.chars().count()));
            let (before, after) = match align {
                Align::Left => ("", blanks.as_str()),
                Align::Right => (blanks.as_str(), ""),
            };
            line.push_str(before);
            line.push_str(cell);
            line.push_str(after);
            line.push_str("  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

/// `name   value` lines with the values aligned, indented by two spaces.
#[must_use]
pub fn fields<K: AsRef<str>, V: AsRef<str>>(pairs: &[(K, V)]) -> String {
    let width = pairs.iter().map(|(key, _)| key.as_ref().chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (key, value) in pairs {
        let blanks = " ".repeat(width - key.as_ref().chars().count());
        let line = format!("  {}{blanks}  {}", key.as_ref(), value.as_ref());
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// A heading, underlined, with a blank line before it.
#[must_use]
pub fn heading(title: &str) -> String {
    format!("\n{title}\n{}\n", "=".repeat(title.chars().count()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_and_nothing_trails() {
        let mut table = Table::new(["chip", "area", "why"]).align(2, Align::Left);
        table.row(["tpu_v4", "278.8 mm²", "reference"]);
        table.row(["x", "9", ""]);
        table.row(["short"]);
        assert_eq!(
            table.render(),
            "chip         area  why\n\
             ------  ---------  ---------\n\
             tpu_v4  278.8 mm²  reference\n\
             x               9\n\
             short\n"
        );
    }

    #[test]
    fn columns_that_say_one_thing_are_taken_out() {
        let mut table = Table::new(["plan", "t", "schedule", "step"]).align(2, Align::Left);
        table.row(["a", "8", "1F1B", "1.0"]);
        let alone = table.clone().take_common(&[1, 2]);
        assert!(alone.is_empty(), "one row says all itself");
        table.row(["b", "4", "1F1B", "1.0"]);
        assert_eq!(table.take_common(&[1, 2]), [("schedule".to_owned(), "1F1B".to_owned())]);
        assert_eq!(table.render(), "plan  t  step\n----  -  ----\na     8   1.0\nb     4   1.0\n");
    }

    #[test]
    fn fields_align_their_values() {
        assert_eq!(fields(&[("a", "1"), ("long", "2"), ("n", "")]), "  a     1\n  long  2\n  n\n");
        assert_eq!(heading("Best"), "\nBest\n====\n");
    }
}
