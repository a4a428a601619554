//! What the kit found, as a person reads it.

use std::fmt;

/// How one check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The clause holds as far as the check sees.
    Passed,
    /// It does not; the sentence says what was expected and what came.
    Failed(String),
    /// The clause does not concern this backend; the sentence says why.
    NotApplicable(String),
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Clause and claim, such as `p07_bytes_come_back_in_all_sizes`.
    pub name: &'static str,
    /// How it ended.
    pub outcome: Outcome,
}

/// All checks of one backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The backend, in words: file, name, version, capabilities.
    pub subject: String,
    /// In the order of the clauses.
    pub checks: Vec<Check>,
}

impl Report {
    /// Whether no check failed, and at least one passed.
    pub fn conforms(&self) -> bool {
        self.failures().next().is_none() && self.checks.iter().any(|check| check.outcome == Outcome::Passed)
    }

    /// The checks that failed, with their sentences.
    pub fn failures(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.checks.iter().filter_map(|check| match &check.outcome {
            Outcome::Failed(sentence) => Some((check.name, sentence.as_str())),
            Outcome::Passed | Outcome::NotApplicable(_) => None,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.subject)?;
        // Checks that were not run are listed by their reason, so that the others stand out.
        let mut void: Vec<(&str, Vec<&str>)> = Vec::new();
        for Check { name, outcome } in &self.checks {
            match outcome {
                Outcome::Passed => writeln!(f, "  ok    {name}")?,
                Outcome::Failed(why) => writeln!(f, "  FAIL  {name}\n        {}", indented(why))?,
                Outcome::NotApplicable(why) => match void.iter_mut().find(|(reason, _)| reason == why) {
                    Some((_, names)) => names.push(name),
                    None => void.push((why, vec![name])),
                },
            }
        }
        for (reason, names) in void {
            writeln!(f, "\n  not applicable: {}", indented(reason))?;
            for name in names {
                writeln!(f, "  --    {name}")?;
            }
        }
        let count = |outcome: fn(&Outcome) -> bool| self.checks.iter().filter(|c| outcome(&c.outcome)).count();
        let passed = count(|outcome| matches!(outcome, Outcome::Passed));
        let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
        let verdict = if self.conforms() { "conforms" } else { "does NOT conform" };
        writeln!(
            f,
            "\n{verdict}: {passed} passed, {failed} failed, {} not applicable",
            self.checks.len() - passed - failed
        )
    }
}

/// Text of several lines, aligned below its check.
fn indented(text: &str) -> String {
    text.trim_end().replace('\n', "\n        ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcomes: &[Outcome]) -> Report {
        let checks = outcomes.iter().map(|outcome| Check { name: "p01_a", outcome: outcome.clone() }).collect();
        Report { subject: "x".to_owned(), checks }
    }

    #[test]
    fn a_report_conforms_only_where_something_passed_and_nothing_failed() {
        let (no, failed) = (Outcome::NotApplicable("no".into()), Outcome::Failed("bad".into()));
        for (outcomes, conforms) in [
            (vec![], false),
            (vec![no.clone()], false),
            (vec![no.clone(), Outcome::Passed], true),
            (vec![Outcome::Passed, failed], false),
        ] {
            assert_eq!(report(&outcomes).conforms(), conforms, "{outcomes:?}");
        }
    }

    #[test]
    fn a_failure_is_printed_with_its_sentence_and_the_sum() {
        let text = report(&[Outcome::Passed, Outcome::Failed("expected a miss, got ok".into())]).to_string();
        for words in ["ok    p01_a", "FAIL  p01_a", "expected a miss, got ok", "does NOT conform: 1 passed, 1 failed"] {
            assert!(text.contains(words), "{words} is missing in\n{text}");
        }
    }
}
