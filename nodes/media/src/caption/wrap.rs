//! Breaking a line of text into several of limited width.

/// Breaks `line` at spaces so that no piece is wider than `width` columns; wide characters
/// (Chinese, Japanese, Korean) count two and may be broken anywhere. A longer word of narrow
/// letters stays whole.
pub fn wrap(line: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = Vec::new();
    let mut current = String::new();
    let mut used = 0;
    for word in line.split_whitespace() {
        let columns: usize = word.chars().map(columns).sum();
        if used > 0 && used + 1 + columns <= width {
            current.push(' ');
            current.push_str(word);
            used += 1 + columns;
            continue;
        }
        if used > 0 {
            lines.push(std::mem::take(&mut current));
            used = 0;
        }
        if columns <= width || !word.chars().any(|c| self::columns(c) == 2) {
            current.push_str(word);
            used = columns;
            continue;
        }
        for c in word.chars() {
            let w = self::columns(c);
            // Closing punctuation never starts a line.
            if used > 0 && used + w > width && !"、。，．！？）」』】》…".contains(c) {
                lines.push(std::mem::take(&mut current));
                used = 0;
            }
            current.push(c);
            used += w;
        }
    }
    if !current.is_empty() || lines.is_empty() {
        lines.push(current);
    }
    lines
}

/// Columns of a character in a fixed-width font, as far as captions need it.
fn columns(c: char) -> usize {
    match c as u32 {
        0x0300..=0x036f | 0x200b..=0x200f | 0xfe00..=0xfe0f => 0,
        0x1100..=0x115f
        | 0x2e80..=0xa4cf
        | 0xac00..=0xd7a3
        | 0xf900..=0xfaff
        | 0xfe30..=0xfe4f
        | 0xff00..=0xff60
        | 0xffe0..=0xffe6
        | 0x1f300..=0x1faff
        | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_at_spaces_and_lose_nothing() {
        assert_eq!(wrap("aa bb cc", 5), ["aa bb", "cc"]);
        assert_eq!(wrap("aa bb cc", 8), ["aa bb cc"]);
        assert_eq!(wrap("a https://example.org/long b", 8), ["a", "https://example.org/long", "b"]);
        assert_eq!(wrap("", 8), [""]);
        let text = "the quick brown fox jumps over the lazy dog and runs away into the woods";
        for width in 1..80 {
            let lines = wrap(text, width);
            assert_eq!(lines.join(" "), text);
            assert!(lines.iter().all(|l| l.len() <= width || !l.contains(' ')), "{width}: {lines:?}");
        }
    }

    #[test]
    fn wide_characters_count_two_and_break_anywhere() {
        assert_eq!(wrap("今天天气很好。我们去公园", 8), ["今天天气", "很好。我", "们去公园"]);
        assert_eq!(wrap("今天天气。", 8), ["今天天气。"]);
    }
}
