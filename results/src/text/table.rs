//! Aligned text: tables, key-value blocks and headings. Text that is wider than the screen continues on the next line.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Default screen width, in characters.
const WIDEST: usize = 170;
/// The smallest screen width that reports support, in characters. On a narrower screen, lines keep this width.
const LEAST: usize = 60;
/// The current screen width, in characters.
static SCREEN: AtomicUsize = AtomicUsize::new(WIDEST);
/// The smallest width to which a column of text is folded, in characters.
const NARROWEST: usize = 24;
/// The largest number of tables, one below the other, into which a turned table is split.
const TURNED_BLOCKS: usize = 2;

/// Sets the screen width for later reports, in characters. Widths below 60 count as 60.
pub fn set_screen_width(columns: usize) {
    SCREEN.store(columns.max(LEAST), Ordering::Relaxed);
}

/// Returns the current screen width, in characters.
fn screen_width() -> usize {
    SCREEN.load(Ordering::Relaxed)
}

/// Alignment of a column's cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnAlign {
    /// For words.
    Left,
    /// For numbers.
    Right,
}

/// A text table: a header, a rule and rows. Two spaces separate columns; lines have no trailing blanks.
#[derive(Debug, Clone)]
pub struct TextTable {
    header: Vec<String>,
    align: Vec<ColumnAlign>,
    rows: Vec<Vec<String>>,
    /// Heads of the columns that are dropped last.
    kept: Vec<String>,
    /// True if dropped columns are printed below their row.
    spills: bool,
    /// True if a table that is too wide is turned: its rows become columns.
    turns: bool,
}

impl TextTable {
    /// Makes a table with these column heads. The first column names the row and is left-aligned; the others are
    /// right-aligned.
    #[must_use]
    pub fn new<S: Into<String>>(header: impl IntoIterator<Item = S>) -> Self {
        let header: Vec<String> = header.into_iter().map(Into::into).collect();
        let align = (0..header.len()).map(|i| if i == 0 { ColumnAlign::Left } else { ColumnAlign::Right }).collect();
        Self { header, align, rows: Vec::new(), kept: Vec::new(), spills: false, turns: false }
    }

    /// Sets the alignment of one column. Columns count from 0; unknown columns are ignored.
    #[must_use]
    pub fn align_column(mut self, column: usize, align: ColumnAlign) -> Self {
        if let Some(slot) = self.align.get_mut(column) {
            *slot = align;
        }
        self
    }

    /// Marks columns as important, by their heads. A table that is too wide drops all other columns first.
    #[must_use]
    pub fn keep_columns(mut self, heads: &[&str]) -> Self {
        self.kept = heads.iter().map(|head| (*head).to_owned()).collect();
        self
    }

    /// Makes [`Self::render`] print dropped columns below each row, as `head: cell` pairs.
    #[must_use]
    pub fn spill_below(mut self) -> Self {
        self.spills = true;
        self
    }

    /// Makes [`Self::render`] turn a table of few rows rather than drop columns: the rows become columns.
    #[must_use]
    pub fn turn_if_wide(mut self) -> Self {
        self.turns = true;
        self
    }

    /// Adds a row. Missing cells are blank; cells beyond the header are dropped.
    pub fn add_row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let mut row: Vec<String> = cells.into_iter().map(Into::into).collect();
        row.resize(self.header.len(), String::new());
        self.rows.push(row);
    }

    /// Removes those of `columns` (in ascending order) that have the same value in all rows. Returns their heads and
    /// values. A table with fewer than two rows keeps all columns.
    pub fn take_common_columns(&mut self, columns: &[usize]) -> Vec<(String, String)> {
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

    /// True if the table has no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Renders the table, one line per row (more if cells are folded), ending in a line break.
    ///
    /// A table that is wider than the screen first folds cells and heads. If that is not enough, it drops columns from
    /// the right, those of [`Self::keep_columns`] last, and names them below the table. After [`Self::spill_below`] it
    /// prints their cells below each row instead. After [`Self::turn_if_wide`] it turns the table if that is enough.
    #[must_use]
    pub fn render(&self) -> String {
        self.render_within(screen_width())
    }

    fn render_within(&self, widest: usize) -> String {
        if let Some(turned) = self.render_turned(widest) {
            return turned;
        }
        let mut shown = self.clone();
        let mut left_out: Vec<String> = Vec::new();
        while shown.excess_width(&shown.column_widths(widest), widest) > 0 && shown.header.len() > 2 {
            let last = shown.header.len() - 1;
            let column = (1..=last).rev().find(|&column| !self.kept.contains(&shown.header[column])).unwrap_or(last);
            shown.align.remove(column);
            shown.rows.iter_mut().for_each(|row| drop(row.remove(column)));
            left_out.push(shown.header.remove(column));
        }
        if self.spills && !left_out.is_empty() {
            let below: Vec<String> = self.rows.iter().map(|row| self.spilled_lines(row, &left_out, widest)).collect();
            return shown.render_whole(widest, &below);
        }
        let mut text = shown.render_whole(widest, &[]);
        if !left_out.is_empty() {
            left_out.sort_by_key(|head| self.header.iter().position(|of| of == head));
            let names = left_out.join(", ");
            text.push_str(&fold_line_within(
                &format!("Columns left out: {names}; use a wider screen or --format json."),
                widest,
            ));
        }
        text
    }

    /// Renders a table that is wider than the screen with its rows as columns, in as few blocks as fit. `None` if the
    /// table is not too wide, if it must not be turned, or if it needs more than [`TURNED_BLOCKS`] blocks.
    fn render_turned(&self, widest: usize) -> Option<String> {
        let is_wide = |table: &Self| table.excess_width(&table.column_widths(widest), widest) > 0;
        if !self.turns || self.rows.is_empty() || !is_wide(self) {
            return None;
        }
        let blocks = |count: usize| -> Vec<Self> {
            self.rows.chunks(self.rows.len().div_ceil(count)).map(|rows| self.turn_rows(rows)).collect()
        };
        let fitting = (1..=TURNED_BLOCKS).map(blocks).find(|blocks| !blocks.iter().any(is_wide))?;
        Some(fitting.iter().map(|block| block.render_whole(widest, &[])).collect::<Vec<_>>().join("\n"))
    }

    /// Returns a table with the heads as its first column and each of these rows as a further column.
    fn turn_rows(&self, rows: &[Vec<String>]) -> Self {
        let numbers = self.align.iter().skip(1).all(|align| *align == ColumnAlign::Right);
        let mut turned = Self::new(self.header.iter().take(1).chain(rows.iter().map(|row| &row[0])));
        for column in 1..turned.header.len() {
            turned = turned.align_column(column, if numbers { ColumnAlign::Right } else { ColumnAlign::Left });
        }
        for column in 1..self.header.len() {
            turned.add_row(std::iter::once(&self.header[column]).chain(rows.iter().map(|row| &row[column])));
        }
        turned
    }

    /// Returns the dropped cells of a row as indented text. Empty cells and dashes are left out.
    fn spilled_lines(&self, row: &[String], left_out: &[String], widest: usize) -> String {
        let cells = self
            .header
            .iter()
            .zip(row)
            .filter(|(head, cell)| left_out.contains(head) && !cell.is_empty() && *cell != "-");
        let words: Vec<String> = cells.map(|(head, cell)| format!("{head}: {cell}")).collect();
        if words.is_empty() { String::new() } else { fold_line_within(&format!("    {}", words.join("; ")), widest) }
    }

    /// Renders all columns. `below` has a text to print after each row.
    fn render_whole(&self, widest: usize, below: &[String]) -> String {
        let widths = self.column_widths(widest);
        let mut text = String::new();
        self.row_lines(&mut text, &self.header, &widths);
        let rule: Vec<String> = widths.iter().map(|w| "-".repeat(*w)).collect();
        self.row_lines(&mut text, &rule, &widths);
        for (at, row) in self.rows.iter().enumerate() {
            self.row_lines(&mut text, row, &widths);
            text.push_str(below.get(at).map_or("", String::as_str));
        }
        text
    }

    /// Returns the widths of the columns. If their sum is too large, left-aligned columns are folded, the widest first.
    /// The first column is folded last, and only on screens narrower than [`WIDEST`]. Then heads that are wider than
    /// their cells are folded.
    fn column_widths(&self, widest: usize) -> Vec<usize> {
        let cells = |column: usize| self.rows.iter().map(move |row| row[column].chars().count()).max().unwrap_or(0);
        let head = |column: usize| self.header[column].chars().count();
        let mut widths: Vec<usize> = (0..self.header.len()).map(|column| cells(column).max(head(column))).collect();
        let excess = |widths: &[usize]| self.excess_width(widths, widest);
        let mut words: Vec<usize> =
            (1..widths.len()).filter(|column| self.align[*column] == ColumnAlign::Left).collect();
        words.sort_by_key(|column| std::cmp::Reverse(widths[*column]));
        if widest < WIDEST {
            words.push(0);
        }
        for column in words {
            let longest = self
                .rows
                .iter()
                .flat_map(|row| break_pieces(&row[column]))
                .map(|piece| piece.trim_end().chars().count())
                .max();
            let narrowest = longest.unwrap_or(0).max(head(column)).max(NARROWEST).min(widths[column]);
            widths[column] = widths[column].saturating_sub(excess(&widths)).max(narrowest);
        }
        for column in 0..widths.len() {
            if excess(&widths) > 0 && head(column) > cells(column) {
                let longest = self.header[column].split(' ').map(|word| word.chars().count()).max().unwrap_or(0);
                widths[column] = longest.max(cells(column)).min(widths[column]);
            }
        }
        widths
    }

    /// Returns the number of characters by which columns of these widths are wider than `widest`.
    fn excess_width(&self, widths: &[usize], widest: usize) -> usize {
        (widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1)).saturating_sub(widest)
    }

    /// Appends a row, with as many lines as its tallest cell has.
    fn row_lines(&self, text: &mut String, cells: &[String], widths: &[usize]) {
        let folded: Vec<Vec<String>> = cells.iter().zip(widths).map(|(cell, width)| wrap_text(cell, *width)).collect();
        let height = folded.iter().map(Vec::len).max().unwrap_or(0);
        for at in 0..height {
            let cells: Vec<&str> = folded.iter().map(|lines| lines.get(at).map_or("", String::as_str)).collect();
            self.format_line(text, &cells, widths);
        }
    }

    fn format_line(&self, text: &mut String, cells: &[&str], widths: &[usize]) {
        let mut line = String::new();
        for ((cell, width), align) in cells.iter().zip(widths).zip(&self.align) {
            let blanks = " ".repeat(width.saturating_sub(cell.chars().count()));
            let (before, after) = match align {
                ColumnAlign::Left => ("", blanks.as_str()),
                ColumnAlign::Right => (blanks.as_str(), ""),
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

/// Splits a text at the places where a line may break: after spaces, and between a comma or a plus sign and a letter.
fn break_pieces(text: &str) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        if let Some(piece) = pieces.last_mut() {
            piece.push(c);
        }
        let letter_next = characters.peek().is_some_and(|next| next.is_alphabetic());
        if c == ' ' || (matches!(c, ',' | '+') && letter_next) {
            pieces.push(String::new());
        }
    }
    pieces
}

/// Wraps a text to lines of at most `width` characters. A text that fits stays unchanged. A piece that is longer than
/// `width` gets its own line.
fn wrap_text(text: &str, width: usize) -> Vec<String> {
    if text.chars().count() <= width {
        return vec![text.to_owned()];
    }
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for piece in break_pieces(text) {
        if !line.is_empty() && line.chars().count() + piece.trim_end().chars().count() > width {
            lines.push(line.trim_end().to_owned());
            line.clear();
        }
        line.push_str(&piece);
    }
    lines.push(line.trim_end().to_owned());
    lines
}

/// Wraps a line that is wider than the screen. Continuation lines are indented by two more spaces. The result ends in a
/// line break.
#[must_use]
pub fn fold_line(line: &str) -> String {
    fold_line_within(line, screen_width())
}

fn fold_line_within(line: &str, widest: usize) -> String {
    let words = line.trim_start();
    let indent = line.len() - words.len();
    let lines = wrap_text(words, widest - indent.min(widest / 2) - 2);
    let mut text = String::new();
    for (i, part) in lines.iter().enumerate() {
        let blanks = " ".repeat(if i == 0 { indent } else { indent + 2 });
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{blanks}{part}");
    }
    text
}

/// Escapes control characters other than line ends and tabs as Rust does (`\u{1b}`). Without this, names in foreign
/// files could send commands to the terminal.
#[must_use]
pub fn escape_controls(text: &str) -> Cow<'_, str> {
    let is_raw = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(is_raw) {
        return Cow::Borrowed(text);
    }
    let of = |c: char| if is_raw(c) { c.escape_default().to_string() } else { c.to_string() };
    Cow::Owned(text.chars().map(of).collect())
}

/// Wraps those lines of a text that are wider than the screen.
#[must_use]
pub fn fold_lines(text: &str) -> String {
    let of = |line: &str| if line.chars().count() > screen_width() { fold_line(line) } else { format!("{line}\n") };
    text.lines().map(of).collect()
}

/// Formats `name value` lines, indented by two spaces, with aligned values. Long values and values with several lines
/// continue on the lines below.
#[must_use]
pub fn format_fields<K: AsRef<str>, V: AsRef<str>>(pairs: &[(K, V)]) -> String {
    let width = pairs.iter().map(|(key, _)| key.as_ref().chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (key, value) in pairs {
        let room = screen_width().saturating_sub(width + 4).max(NARROWEST);
        let lines = value.as_ref().split('\n').flat_map(|line| wrap_text(line, room));
        for (i, part) in lines.enumerate() {
            let name = if i == 0 { key.as_ref() } else { "" };
            let blanks = " ".repeat(width - name.chars().count());
            let line = format!("  {name}{blanks}  {part}");
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }
    text
}

/// Returns an underlined heading after a blank line.
#[must_use]
pub fn format_heading(title: &str) -> String {
    format!("\n{title}\n{}\n", "=".repeat(title.chars().count()))
}

/// Returns the assumptions about a model and its network, under a heading. Empty if there are none.
#[must_use]
pub fn format_assumptions(assumed: &[String]) -> String {
    if assumed.is_empty() {
        return String::new();
    }
    let lines: String = assumed.iter().map(|line| fold_line(&format!("  {line}"))).collect();
    format!("{}{lines}", format_heading("Assumed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_and_nothing_trails() {
        let mut table = TextTable::new(["chip", "area", "why"]).align_column(2, ColumnAlign::Left);
        table.add_row(["tpu_v4", "278.8 mm²", "reference"]);
        table.add_row(["x", "9", ""]);
        table.add_row(["short"]);
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
        let mut table = TextTable::new(["plan", "t", "schedule", "step"]).align_column(2, ColumnAlign::Left);
        table.add_row(["a", "8", "1F1B", "1.0"]);
        let alone = table.clone().take_common_columns(&[1, 2]);
        assert!(alone.is_empty(), "one row says all itself");
        table.add_row(["b", "4", "1F1B", "1.0"]);
        assert_eq!(table.take_common_columns(&[1, 2]), [("schedule".to_owned(), "1F1B".to_owned())]);
        assert_eq!(table.render(), "plan  t  step\n----  -  ----\na     8   1.0\nb     4   1.0\n");
    }

    fn widest(text: &str) -> usize {
        text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
    }

    fn words(text: &str) -> Vec<&str> {
        text.split_whitespace().collect()
    }

    #[test]
    fn what_is_wider_than_a_screen_goes_on_below() {
        let why = "must be such that pp x virtual_stages = 192 divides the 96 layers ".repeat(4);
        let mut table = TextTable::new(["change", "step s", "why not"]).align_column(2, ColumnAlign::Left);
        table.add_row(["a", "1.0", &why]);
        table.add_row(["b", "2,000.0", "short"]);
        let text = table.render();
        assert!(widest(&text) <= WIDEST && text.lines().count() == 5, "{text}");
        assert!(
            text.lines().nth(3).is_some_and(|line| line.starts_with("                 ") && line.contains("layers")),
            "{text}"
        );
        let all = format!("change step s why not a 1.0 {why} b 2,000.0 short");
        let without_rule: Vec<&str> = words(&text).into_iter().filter(|word| !word.starts_with("--")).collect();
        assert_eq!(without_rule, words(&all));

        // Cells of numbers cannot be folded, but their heads can.
        let mut table = TextTable::new((0..14).map(|i| format!("gathered weights {i}")));
        table.add_row((0..14).map(|i| format!("{i}.00")));
        let text = table.render();
        assert!(widest(&text) <= WIDEST && text.lines().count() > 3, "{text}");
        assert!(text.lines().last().is_some_and(|line| words(line).len() == 14), "{text}");
    }

    #[test]
    fn on_a_narrow_screen_columns_are_left_out_and_named() {
        let mut table = TextTable::new(["design", "area", "peak W", "sequences/s", "first is", "bound by"])
            .align_column(5, ColumnAlign::Left);
        table.add_row([
            "smallest that is within 1 % of the best",
            "150.4 mm²",
            "334",
            "542.1",
            "1.00x",
            "fused attention, bound by cores",
        ]);
        // 24 + 9 + 6 + 11 + 8 + 24, with two blanks between columns: the folded table fits 92 characters.
        let text = table.render_within(92);
        assert!(widest(&text) <= 92 && !text.contains("Columns left out"), "folding is enough: {text}");
        let text = table.render_within(80);
        assert!(widest(&text) <= 80 && text.contains("sequences/s") && text.contains("542.1"), "{text}");
        let said: String =
            text.lines().skip_while(|line| !line.starts_with("Columns left out")).collect::<Vec<_>>().join(" ");
        assert!(said.starts_with("Columns left out: bound by; use a wider"), "{said}");
        assert_eq!(table.render_within(170), table.render());
    }

    #[test]
    fn what_a_narrow_screen_leaves_out_may_stand_below() {
        let mut table = TextTable::new(["dimension", "there", "from", "what it is"])
            .align_column(3, ColumnAlign::Left)
            .spill_below();
        table.add_row([
            "area.core_memory.local_buffer.capacity_kib",
            "16384",
            "0.5",
            "a memory on the die, an instance of it",
        ]);
        table.add_row(["schedule.pairing", "same_index", "", ""]);
        let text = table.render_within(56);
        assert!(widest(&text) <= 56 && !text.contains("Columns left out"), "{text}");
        assert!(text.contains("\n    from: 0.5; what it is: a memory on the die, an\n"), "{text}");
        assert!(text.ends_with("\nschedule.pairing                            same_index\n"), "{text}");
        assert_eq!(table.render_within(170), TextTable { spills: false, ..table }.render_within(170));
    }

    #[test]
    fn a_wide_table_of_few_rows_is_turned_and_loses_nothing() {
        let classes = (0..8).map(|i| format!("optimizer states {i}"));
        let mut table = TextTable::new(std::iter::once("stage".to_owned()).chain(classes)).turn_if_wide();
        for stage in 0..3 {
            table.add_row((0..9).map(|i| if i == 0 { stage.to_string() } else { format!("{i}.{stage}0") }));
        }
        assert!(table.render_within(170).starts_with("stage  optimizer states 0  "));
        let text = table.render_within(60);
        let wanted = "stage                  0     1     2\n------------------  ----  ----  ----\n\
                      optimizer states 0  1.00  1.10  1.20\n";
        assert!(text.starts_with(wanted) && text.ends_with("optimizer states 7  8.00  8.10  8.20\n"), "{text}");
        // Twelve rows need two blocks; thirty need more than two and are not turned.
        for stage in 3..12 {
            table.add_row((0..9).map(|i| if i == 0 { stage.to_string() } else { format!("{i}.{stage}") }));
        }
        let text = table.render_within(60);
        assert!(widest(&text) <= 60 && text.matches("stage  ").count() == 2, "{text}");
        for stage in 12..30 {
            table.add_row((0..9).map(|i| if i == 0 { stage.to_string() } else { format!("{i}.{stage}") }));
        }
        let text = table.render_within(60);
        assert!(widest(&text) <= 60 && text.contains("Columns left out"), "{text}");
        // Words fold in the columns of their rows.
        let mut table =
            TextTable::new(["model", "plan", "step", "tokens per second"]).align_column(1, ColumnAlign::Left);
        let plan = "t 2, p 1, d 4, micro-batch 2, ZeRO-1, sequence parallel";
        table.add_row(["opt-350m", plan, "1.0 s", "1,000"]);
        table.add_row(["llama2-7b", plan, "2.0 s", "2,000"]);
        let text = table.turn_if_wide().render_within(48);
        assert!(widest(&text) <= 48 && !text.contains("left out") && text.contains("\nstep "), "{text}");
    }

    #[test]
    fn words_are_broken_where_they_may_be() {
        assert_eq!(
            wrap_text("custom:offload(qkv_proj,context)+device(out)", 20),
            ["custom:offload(qkv_proj,", "context)+device(out)"]
        );
        assert_eq!(wrap_text("1,025,933 tokens", 9), ["1,025,933", "tokens"]);
        assert_eq!(wrap_text("of one  line", 12), ["of one  line"]);
        assert_eq!(wrap_text("", 3), [""]);
        assert_eq!(fold_line("  a b"), "  a b\n");
        let long = fold_line(&format!("  {}", "word ".repeat(60)));
        assert!(widest(&long) <= WIDEST && long.lines().skip(1).all(|line| line.starts_with("    word")), "{long}");
    }

    #[test]
    fn fields_align_their_values() {
        assert_eq!(format_fields(&[("a", "1"), ("long", "2"), ("n", "")]), "  a     1\n  long  2\n  n\n");
        assert_eq!(format_fields(&[("stage 1", "a\nb")]), "  stage 1  a\n           b\n");
        let long = format_fields(&[("because", "no plan fits ".repeat(30))]);
        assert!(widest(&long) <= WIDEST && long.lines().skip(1).all(|line| line.starts_with("           ")), "{long}");
        assert_eq!(format_heading("Best"), "\nBest\n====\n");
    }
}
