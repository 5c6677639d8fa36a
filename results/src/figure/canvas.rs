//! A drawing surface in SVG units, with the marks and texts of figures.

use super::{Figure, FigureError};
use plotters::coord::Shift;
use plotters::element::{Circle, Drawable, PathElement, PointCollection, Polygon, Rectangle, Text};
use plotters::prelude::{DrawingArea, IntoDrawingArea, IntoFont, RGBColor, SVGBackend};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontFamily, FontStyle, FontTransform, IntoTextStyle, RGBAColor, ShapeStyle};

/// A point on the surface, in SVG units from the left and from the top.
pub(super) type SvgPoint = (i32, i32);

/// Fonts in the order of preference. The PNG is rendered with the first; a browser may have only the others.
const FAMILY: &str = "DejaVu Sans, Verdana, sans-serif";

/// Text size for titles, in SVG units.
pub(super) const TITLE: i32 = 18;
/// Text size for axis labels and subtitles.
pub(super) const LABEL: i32 = 14;
/// Text size for tick labels, legends and point labels.
pub(super) const SMALL: i32 = 12;

/// Colour of text and axes.
pub(super) const INK: RGBColor = RGBColor(34, 34, 34);
/// Colour of secondary text.
pub(super) const GREY: RGBColor = RGBColor(110, 110, 110);
/// Colour of grid lines.
pub(super) const GRID: RGBColor = RGBColor(228, 228, 228);
/// Colour of the page.
pub(super) const PAPER: RGBColor = RGBColor(255, 255, 255);

/// Colours of groups: Okabe and Ito's palette for colour-blind readers (jfly.uni-koeln.de/color), without black and
/// yellow.
pub(super) const PALETTE: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// The shape of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PlotMark {
    /// A disc.
    Dot,
    /// A circle, not filled.
    Ring,
    /// A diamond.
    Diamond,
    /// A triangle with a point at the top.
    Triangle,
    /// A square.
    Square,
    /// A triangle with a point at the bottom.
    TriangleDown,
    /// A star with five points.
    Star,
    /// Two triangles that meet in a point.
    Hourglass,
    /// A thick cross with upright arms.
    Plus,
    /// A regular pentagon.
    Pentagon,
    /// A thick cross with slanted arms.
    Cross,
    /// A triangle with a point at the left.
    TriangleLeft,
    /// A triangle with a point at the right.
    TriangleRight,
    /// Two triangles side by side that meet in a point.
    Bowtie,
    /// A tall rectangle.
    Bar,
    /// A wide rectangle.
    Beam,
    /// A short vertical line.
    Tick,
    /// A short line along the x axis: the legend's symbol of a line.
    Line,
    /// A filled area: the legend's symbol of a band.
    Band,
}

impl PlotMark {
    /// Filled marks that are told apart at small sizes, besides the dot and the diamond.
    pub(super) const DISTINCT: [Self; 13] = [
        Self::Triangle,
        Self::Square,
        Self::TriangleDown,
        Self::Star,
        Self::Hourglass,
        Self::Plus,
        Self::Pentagon,
        Self::Cross,
        Self::TriangleLeft,
        Self::TriangleRight,
        Self::Bowtie,
        Self::Bar,
        Self::Beam,
    ];

    /// Returns the corners of a polygon, in units of its radius; empty for other marks.
    fn corners(self) -> Vec<(f64, f64)> {
        let around = |corners: usize, inner: f64| -> Vec<(f64, f64)> {
            let angle = |i: usize| std::f64::consts::TAU * i as f64 / corners as f64;
            let reach = move |i: usize| if i % 2 == 1 { inner } else { 1.0 };
            (0..corners).map(|i| (reach(i) * angle(i).sin(), -reach(i) * angle(i).cos())).collect()
        };
        // The upper arm of a plus. Quarter turns give the other arms.
        let arm = [(-0.35, -1.0), (0.35, -1.0), (0.35, -0.35)];
        let turned = |at: (f64, f64), quarters: usize| (0..quarters).fold(at, |(x, y), _| (-y, x));
        let plus = (0..4).flat_map(|quarters| arm.map(|corner| turned(corner, quarters)));
        let rectangle = |x: f64, y: f64| vec![(-x, -y), (x, -y), (x, y), (-x, y)];
        match self {
            Self::Diamond => around(4, 1.0),
            Self::Triangle => vec![(0.0, -1.0), (1.0, 1.0), (-1.0, 1.0)],
            Self::TriangleLeft => vec![(-1.0, 0.0), (1.0, -1.0), (1.0, 1.0)],
            Self::TriangleRight => vec![(1.0, 0.0), (-1.0, 1.0), (-1.0, -1.0)],
            Self::Square => rectangle(1.0, 1.0),
            Self::Bar => rectangle(0.45, 1.0),
            Self::Beam => rectangle(1.0, 0.45),
            Self::Bowtie => vec![(-1.0, -1.0), (1.0, 1.0), (1.0, -1.0), (-1.0, 1.0)],
            Self::TriangleDown => vec![(-1.0, -1.0), (1.0, -1.0), (0.0, 1.0)],
            Self::Star => around(10, 0.45),
            Self::Hourglass => vec![(-1.0, -1.0), (1.0, -1.0), (-1.0, 1.0), (1.0, 1.0)],
            Self::Plus => plus.collect(),
            Self::Pentagon => around(5, 1.0),
            Self::Cross => plus.map(|(x, y)| (0.75 * (x - y), 0.75 * (x + y))).collect(),
            Self::Dot | Self::Ring | Self::Tick | Self::Line | Self::Band => Vec::new(),
        }
    }
}

/// The drawing surface. After the first error of the drawing library it draws nothing more. It reports that error at
/// the end.
pub(super) struct Canvas<'a> {
    area: DrawingArea<SVGBackend<'a>, Shift>,
    failure: Option<String>,
}

impl Canvas<'_> {
    /// Draws a figure of `size` (width, height) in SVG units. `paint` draws on an empty white surface. `title` names
    /// the figure in errors.
    pub(super) fn draw_figure(
        title: &str,
        size: (u32, u32),
        paint: impl FnOnce(&mut Canvas<'_>),
    ) -> Result<Figure, FigureError> {
        let mut svg = String::new();
        match Self::paint_svg(&mut svg, size, paint) {
            Some(why) => Err(FigureError::Draw { title: title.into(), why }),
            None => Ok(Figure { svg }),
        }
    }

    /// Paints into `svg`. Returns the message of the first error, if any.
    fn paint_svg(svg: &mut String, size: (u32, u32), paint: impl FnOnce(&mut Canvas<'_>)) -> Option<String> {
        let area = SVGBackend::with_string(svg, size).into_drawing_area();
        let mut canvas = Canvas { area, failure: None };
        canvas.draw_rectangle((0, 0), (size.0 as i32, size.1 as i32), PAPER.to_rgba());
        paint(&mut canvas);
        let present = canvas.area.present().err().map(|e| e.to_string());
        canvas.failure.or(present)
    }
}

impl<'a> Canvas<'a> {
    fn draw_element<E>(&mut self, element: &E)
    where
        for<'e> &'e E: PointCollection<'e, SvgPoint>,
        E: Drawable<SVGBackend<'a>>,
    {
        if self.failure.is_none()
            && let Err(e) = self.area.draw(element)
        {
            self.failure = Some(e.to_string());
        }
    }

    /// Draws a filled rectangle between two opposite corners.
    pub(super) fn draw_rectangle(&mut self, from: SvgPoint, to: SvgPoint, color: RGBAColor) {
        self.draw_element(&Rectangle::new([from, to], color.filled()));
    }

    /// Draws a line through the points.
    pub(super) fn draw_line(&mut self, places: Vec<SvgPoint>, color: RGBAColor, width: u32) {
        self.draw_element(&PathElement::new(places, color.stroke_width(width)));
    }

    /// Draws a filled polygon.
    pub(super) fn draw_polygon(&mut self, places: Vec<SvgPoint>, color: RGBAColor) {
        self.draw_element(&Polygon::new(places, color));
    }

    /// Draws a mark with `radius` in SVG units.
    pub(super) fn draw_mark(&mut self, mark: PlotMark, at: SvgPoint, radius: i32, color: RGBAColor) {
        let (x, y) = at;
        let style: ShapeStyle = color.filled();
        let place = |unit: f64| (unit * f64::from(radius)).round() as i32;
        match mark {
            PlotMark::Dot => self.draw_element(&Circle::new(at, radius, style)),
            PlotMark::Ring => self.draw_element(&Circle::new(at, radius, color.stroke_width(2))),
            PlotMark::Tick => self.draw_line(vec![(x, y - radius), (x, y + radius)], color, 1),
            PlotMark::Line => self.draw_line(vec![(x - 2 * radius, y), (x + 2 * radius, y)], color, 2),
            PlotMark::Band => self.draw_rectangle((x - 2 * radius, y - radius), (x + 2 * radius, y + radius), color),
            _ => self.draw_polygon(mark.corners().iter().map(|c| (x + place(c.0), y + place(c.1))).collect(), color),
        }
    }

    /// Draws one line of text. `anchor` names the point of the text that lies at `at`.
    pub(super) fn draw_text(&mut self, words: &str, at: SvgPoint, size: i32, color: RGBColor, anchor: (HPos, VPos)) {
        self.draw_styled_text(words, at, size, color, anchor, FontStyle::Normal, FontTransform::None);
    }

    /// Draws one line of bold text.
    pub(super) fn draw_bold_text(
        &mut self,
        words: &str,
        at: SvgPoint,
        size: i32,
        color: RGBColor,
        anchor: (HPos, VPos),
    ) {
        self.draw_styled_text(words, at, size, color, anchor, FontStyle::Bold, FontTransform::None);
    }

    /// Draws one line of text that reads upwards, centred at `at`.
    pub(super) fn draw_upright_text(&mut self, words: &str, at: SvgPoint, size: i32, color: RGBColor) {
        self.draw_styled_text(
            words,
            at,
            size,
            color,
            (HPos::Center, VPos::Center),
            FontStyle::Normal,
            FontTransform::Rotate270,
        );
    }

    #[allow(clippy::too_many_arguments, reason = "the one place where all of a text's properties meet")]
    fn draw_styled_text(
        &mut self,
        words: &str,
        at: SvgPoint,
        size: i32,
        color: RGBColor,
        (h, v): (HPos, VPos),
        style: FontStyle,
        turn: FontTransform,
    ) {
        // The path of a model may contain control characters, which XML does not allow.
        let words: String = words
            .chars()
            .map(|c| if c.is_control() || ('\u{fffe}'..='\u{ffff}').contains(&c) { '?' } else { c })
            .collect();
        // The SVG backend takes a size for a line height, and divides it by 1.24 to get the font size.
        let font = (FontFamily::Name(FAMILY), f64::from(size) * 1.24, style).into_font().transform(turn);
        let style = font.into_text_style(&self.area).color(&color).pos(Pos::new(h, v));
        self.draw_element(&Text::new(words, at, style));
    }
}

/// Estimates the width of a line of DejaVu Sans, in SVG units. The widths in em are 0.38 for narrow letters and points,
/// 0.95 for `m`, `w` and wide signs, 0.75 for capitals, and 0.63 for the rest. The estimate is a few percent too large.
pub(super) fn text_width(words: &str, size: i32) -> i32 {
    let em = |c: char| match c {
        'i' | 'j' | 'l' | 'f' | 't' | 'r' | ' ' | '.' | ',' | ':' | ';' | '\'' | '|' | '(' | ')' | '/' | '-' => 0.38,
        'm' | 'w' | '%' | '@' | '≥' | '≤' | '±' | '→' => 0.95,
        c if c.is_uppercase() => 0.75,
        _ => 0.63,
    };
    (words.chars().map(em).sum::<f64>() * f64::from(size)).ceil() as i32
}

/// Cuts a line of text to at most `width` SVG units. A cut line ends in an ellipsis.
pub(super) fn cut_to_width(words: &str, size: i32, width: i32) -> String {
    let mut cut = words.to_owned();
    if text_width(&cut, size) > width {
        while text_width(&cut, size) > width - size && cut.pop().is_some() {}
        cut.push('…');
    }
    cut
}

/// Wraps words to lines of at most `width` SVG units. A word that is wider is cut, with an ellipsis.
pub(super) fn wrap_to_width(words: &str, size: i32, width: i32) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words.split_whitespace() {
        let word = cut_to_width(word, size, width);
        match lines.last_mut() {
            Some(line) if text_width(&format!("{line} {word}"), size) <= width => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_wrap_at_words_and_long_words_are_cut() {
        assert_eq!(wrap_to_width("one two three", 10, 60), ["one two", "three"]);
        let cut = wrap_to_width("abcdefghijklmnopqrstuvwxyz", 10, 60);
        assert!(cut.len() == 1 && cut[0].ends_with('…') && text_width(&cut[0], 10) <= 66, "{cut:?}");
        assert!(wrap_to_width("", 10, 60).is_empty());
    }

    #[test]
    fn text_is_escaped() {
        let figure =
            Canvas::draw_figure("t", (50, 50), |c| c.draw_text("a<b & c", (1, 1), 12, INK, (HPos::Left, VPos::Top)));
        assert!(figure.is_ok_and(|f| f.svg().contains("a&lt;b &amp; c")));
        let odd = Canvas::draw_figure("t", (50, 50), |c| {
            c.draw_text("a\u{1}\u{ffff}\n漢", (1, 1), 12, INK, (HPos::Left, VPos::Top))
        });
        assert!(odd.is_ok_and(|f| f.svg().contains("a???漢") && f.png().is_ok()));
    }
}
