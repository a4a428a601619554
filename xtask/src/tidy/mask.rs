//! Rust text with the inside of comments and literals blanked, so that rules see code alone. Line numbers and
//! columns stay.

/// Blanks comments, strings and chars; newlines stay.
pub(super) fn mask(text: &str) -> String {
    let source: Vec<char> = text.chars().collect();
    let mut out = source.clone();
    let mut at = 0;
    while at < source.len() {
        let end = literal_end(&source, at);
        for cell in &mut out[at..end] {
            if *cell != '\n' {
                *cell = ' ';
            }
        }
        at = end.max(at + 1);
    }
    out.into_iter().collect()
}

/// Where the comment or literal that starts at `at` ends; `at` itself if none starts there.
fn literal_end(source: &[char], at: usize) -> usize {
    let next = source.get(at + 1).copied();
    let is_word_before = at > 0 && (source[at - 1].is_alphanumeric() || source[at - 1] == '_');
    match (source[at], next) {
        ('/', Some('/')) => find(source, at, |rest| rest[0] == '\n'),
        ('/', Some('*')) => comment_end(source, at),
        ('"', _) => quoted_end(source, at + 1, '"'),
        ('r', Some('"' | '#')) if !is_word_before => raw_end(source, at + 1).unwrap_or(at),
        ('b', Some('r')) if !is_word_before => raw_end(source, at + 2).unwrap_or(at),
        ('\'', Some('\\')) => quoted_end(source, at + 1, '\''),
        // A char, not a lifetime: a quote follows the one character.
        ('\'', Some(_)) if source.get(at + 2) == Some(&'\'') => at + 3,
        _ => at,
    }
}

fn find(source: &[char], from: usize, is_it: impl Fn(&[char]) -> bool) -> usize {
    (from..source.len()).find(|at| is_it(&source[*at..])).unwrap_or(source.len())
}

fn comment_end(source: &[char], from: usize) -> usize {
    let (mut at, mut depth) = (from, 0_usize);
    while at < source.len() {
        match (source[at], source.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    source.len()
}

fn quoted_end(source: &[char], from: usize, quote: char) -> usize {
    let mut at = from;
    while at < source.len() {
        match source[at] {
            '\\' => at += 2,
            c if c == quote => return at + 1,
            _ => at += 1,
        }
    }
    source.len()
}

/// `from` is at the first `#` or quote after the `r`. None: a raw identifier.
fn raw_end(source: &[char], from: usize) -> Option<usize> {
    let open = find(source, from, |rest| rest[0] != '#');
    if source.get(open) != Some(&'"') {
        return None;
    }
    let hashes = open - from;
    let closes = |rest: &[char]| rest[0] == '"' && rest[1..].iter().take_while(|c| **c == '#').count() >= hashes;
    Some((find(source, open + 1, closes) + 1 + hashes).min(source.len()))
}

#[cfg(test)]
mod tests {
    use super::mask;

    #[test]
    fn comments_and_literals_are_blank_and_code_stays() {
        let check = |text: &str, hidden: &str, kept: &str| {
            let masked = mask(text);
            assert_eq!(masked.chars().count(), text.chars().count(), "{text}");
            assert!(!masked.contains(hidden), "{hidden:?} shows in {masked:?}");
            assert!(masked.contains(kept), "{kept:?} is lost in {masked:?}");
        };
        check("a(); // hidden {\nb();", "hidden", "b();");
        check("a /* x /* hidden */ y */ b", "hidden", " b");
        check(r#"f("hidden \" {", 'x')"#, "hidden", "f(");
        check(r##"f(r#"hidden " {"#); g()"##, "hidden", "; g()");
        check(r#"f(br"hidden {"); g()"#, "hidden", "; g()");
        check("f('{'); g()", "{", "; g()");
        check(r"f('\''); g('{')", "{", "; g(");
        check("fn f<'a>(x: &'a str) { g() }", "hidden", "&'a str) { g() }");
        check("let r#type = 1; g()", "hidden", "r#type = 1; g()");
    }
}
