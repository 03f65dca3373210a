//! Tables as aligned text.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::cell::Cell;
use super::column::Column;

/// Characters of a line of text at most, unless it is wide. The same for terminals and pipes, so that scripts get the same
/// text as people.
const MAX_WIDTH: usize = 120;

/// Blanks between two columns.
const GAP: &str = "  ";

/// Stands for the characters that are cut out of a long value.
const ELLIPSIS: char = '…';

/// Returns the text of a table: a line of column names, and one for each row.
pub(super) fn text(columns: &[Column<'_>], rows: &[Vec<Cell>], is_wide: bool) -> String {
    let columns = columns.iter().enumerate();
    let columns: Vec<(usize, &Column<'_>)> = columns
        .filter(|(_, column)| is_wide || !column.is_wide())
        .collect();
    let heads = columns.iter().map(|(_, column)| column.head()).collect();
    let mut lines: Vec<Vec<String>> = vec![heads];
    for row in rows {
        let cells = columns
            .iter()
            .filter_map(|(place, column)| Some(row.get(*place)?.text(column)));
        lines.push(cells.collect());
    }
    let mut widths = vec![0; columns.len()];
    for line in &lines {
        for (width, text) in widths.iter_mut().zip(line) {
            *width = text.width().max(*width);
        }
    }
    if !is_wide {
        let least: Vec<_> = columns.iter().map(|(_, column)| column.least()).collect();
        fit(&mut widths, &least);
    }
    let mut text = String::new();
    for line in &lines {
        write_line(&mut text, &widths, line);
    }
    text
}

/// Narrows columns that may be, the widest first, until a line is short enough.
fn fit(widths: &mut [usize], least: &[Option<usize>]) {
    let gaps = GAP.len() * widths.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > MAX_WIDTH {
        let can_shrink = |(place, width): &(usize, &mut usize)| {
            least[*place].is_some_and(|least| **width > least)
        };
        let places = widths.iter_mut().enumerate().filter(can_shrink);
        let Some((_, widest)) = places.max_by_key(|(_, width)| **width) else {
            return;
        };
        *widest -= 1;
    }
}

fn write_line(out: &mut String, widths: &[usize], texts: &[String]) {
    let mut line = String::new();
    for (&width, text) in widths.iter().zip(texts) {
        let text = cut(text, width);
        let blanks = width.saturating_sub(text.width());
        line.push_str(&format!("{text}{:blanks$}{GAP}", ""));
    }
    out.push_str(line.trim_end());
    out.push('\n');
}

/// Cuts a text to a width. Its ends stay, since names differ at either.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let tail = width.saturating_sub(1) / 2;
    let head = width.saturating_sub(1 + tail);
    let first: String = within(text.chars(), head).collect();
    let last: Vec<char> = within(text.chars().rev(), tail).collect();
    let last: String = last.into_iter().rev().collect();
    format!("{first}{ELLIPSIS}{last}")
}

/// Returns the first characters, as many as a terminal shows in a width.
fn within(chars: impl Iterator<Item = char>, width: usize) -> impl Iterator<Item = char> {
    let wide = chars.scan(0, |taken, c| {
        *taken += c.width().unwrap_or(0);
        Some((*taken, c))
    });
    wide.take_while(move |(taken, _)| *taken <= width)
        .map(|(_, c)| c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(widths: &[usize], rows: &[&[&str]]) -> String {
        let mut out = String::new();
        for row in rows {
            let texts: Vec<String> = row.iter().map(|&text| text.to_owned()).collect();
            write_line(&mut out, widths, &texts);
        }
        out
    }

    #[test]
    fn text_is_aligned_without_trailing_blanks_and_letters_are_one_wide() {
        let rows: &[&[&str]] = &[&["COUNT", "NAME"], &["1234567", "a"], &["\u{e9}\u{e9}", ""]];
        let expected = "COUNT    NAME\n1234567  a\n\u{e9}\u{e9}\n";
        assert_eq!(lines(&[7, 4], rows), expected);
    }

    #[test]
    fn wide_characters_take_two_columns_and_combining_ones_none() {
        let rows: &[&[&str]] = &[
            &["NODE", "X"],
            &["\u{8a08}\u{7b97}", "a"],
            &["e\u{301}", "b"],
        ];
        let expected = "NODE  X\n\u{8a08}\u{7b97}  a\ne\u{301}     b\n";
        assert_eq!(lines(&[4, 1], rows), expected);
        let cut = cut("\u{8a08}\u{7b97}\u{6a5f}\u{7fa4}-17", 8);
        assert_eq!(cut, "\u{8a08}\u{7b97}\u{2026}-17");
        assert_eq!(cut.width(), 8);
    }

    #[test]
    fn the_widest_of_the_columns_that_may_shrink_gives_way_first() {
        for (mut widths, least, fitted) in [
            ([60, 48, 8], [Some(8), None, None], [60, 48, 8]),
            ([64, 54, 8], [Some(8), None, None], [54, 54, 8]),
            ([80, 50, 10], [Some(8), Some(8), None], [56, 50, 10]),
            ([9, 130, 1], [Some(8), None, None], [8, 130, 1]),
        ] {
            fit(&mut widths, &least);
            assert_eq!(widths, fitted);
        }
    }

    #[test]
    fn a_cut_text_keeps_both_its_ends() {
        for (width, shown) in [(20, "rack17-node-0042"), (9, "rack…0042"), (8, "rack…042")] {
            assert_eq!(cut("rack17-node-0042", width), shown);
        }
    }
}
