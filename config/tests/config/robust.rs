//! Whatever the text, it is a deployment or it is refused in words.

use proptest::prelude::*;

use umbp_config::Share;
use umbp_config::units::{duration_text, parse_duration, parse_share, parse_size, size_text};

use crate::common::{Deployment, GOOD, rendered};

/// Loads, and shows whatever is wrong; a panic or an error without words fails the test.
fn check(deployment: &Deployment) {
    match deployment.load() {
        Ok(config) => {
            let printed = config.to_toml();
            let again = Deployment::new(&printed).load();
            assert!(again.is_ok(), "{printed}\n{}", again.unwrap_err().lines());
            for tier in &config.tiers {
                // A complaint about any byte of the options has its place.
                for at in 0..tier.options.text.len() + 2 {
                    rendered(&config.options_error("tier", &tier.options, "no", at..at + 3));
                }
            }
        }
        Err(errors) => {
            assert!(!errors.errors.is_empty());
            for error in &errors.errors {
                assert!(!error.key.is_empty() && !error.remedy().is_empty(), "{error:?}");
            }
            rendered(&errors);
        }
    }
}

/// Pieces of which files are made, right and wrong.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "\\PC{0,12}",
        Just("\n".to_owned()),
        "[a-zé]{0,4} = \"[0-9]{0,25}(GiB|MB|%|s|é|\\.5%)?\"\n",
        "\\[\\[?(tier|mover|policy|limits|tenant|daemon|tier.options|tier.options.x)\\]?\\]\n",
        "(name|backend|capacity|required|deadline|headroom|lease|quota|uids|socket|options|write) = (\"\\PC{0,6}\"|-?[0-9]{1,20}|true|\\[1, 2\\]|\\{ a = 1 \\}|1.5|nan)\n",
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_text_is_loaded_or_refused_in_words(text in pieces()) {
        check(&Deployment::new(&text));
        check(&Deployment::new(&format!("{GOOD}{text}")));
    }

    /// One stretch of a right file replaced by something else.
    #[test]
    fn a_damaged_file_is_loaded_or_refused_in_words(at in 0..GOOD.len(), length in 0usize..20, text in "\\PC{0,5}") {
        let mut bytes = GOOD.as_bytes().to_vec();
        let end = (at + length).min(bytes.len());
        bytes.splice(at..end, text.bytes());
        if let Ok(toml) = String::from_utf8(bytes) {
            check(&Deployment::new(&toml));
        }
    }

    #[test]
    fn any_variable_is_taken_or_refused_in_words(key in "[A-Z_]{1,12}|DAEMON__(SOCKET|ADMIN|DRAIN)|TIER__(DRAM|NVME)__(CAPACITY|BACKEND)|POLICY__HEADROOM|LIMITS__HOLD", text in "\\PC{0,8}|[0-9]{1,22}(GiB|s|%)?") {
        check(&Deployment::new(GOOD).variable(&format!("UMBP_{key}"), &text));
    }

    #[test]
    fn numbers_with_units_read_back(bytes in prop_oneof![any::<u64>(), (0u64..1 << 20).prop_map(|n| n << 20)], part in 0u32..20_000, ms in 0u64..100_000_000) {
        prop_assert_eq!(parse_size(&size_text(bytes)), Ok(bytes));
        let time = std::time::Duration::from_millis(ms);
        prop_assert_eq!(parse_duration(&duration_text(time)), Ok(time));
        for share in [Share::Part(part), Share::Bytes(bytes)] {
            prop_assert_eq!(parse_share(&share.to_string()), Ok(share));
        }
    }
}
