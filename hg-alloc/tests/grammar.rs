//! The grammar of profiles and sizes: what is read, and the place and reason of every error.

use hg_alloc::profile::{Error, Profile, Reason, ScaleDown, ScaleUp, Size};
use proptest::prelude::*;

const GOOD: &str = "scale up to 2g on 70% for 3 cycles within 10 / scale down to 256m on 30% for 20 cycles";

fn whole() -> Profile {
    Profile {
        up: ScaleUp { to_bytes: 2 << 30, percent: 70, cycles: 3, within: 10 },
        down: Some(ScaleDown { to_bytes: 256 << 20, percent: 30, cycles: 20 }),
    }
}

#[test]
fn the_same_profile_in_many_shapes() {
    for text in [
        GOOD,
        "scale up to 2g on 70% for 3 cycles within 10\n     scale down to 256m on 30% for 20 cycles\n",
        "scale up to 2g on 70% for 3 cycles within 10 scale down to 256m on 30% for 20 cycles",
        "scale down to 256m on 30% for 20 cycles; scale up to 2g on 70% for 3 cycles within 10",
        "SCALE Up to 2048M on 70 % for 3 cycles within 10 cycles, Scale DOWN to 256 on 30% for 20 cycle",
        "\tscale up to 2097152k on 70%for 3 cycles within 0010/scale down to 256m on 30% for 20cycles  ",
    ] {
        assert_eq!(Profile::parse(text), Ok(whole()), "{text}");
    }
}

#[test]
fn what_may_be_left_out() {
    let profile = Profile::parse("scale up to 16 on 100% for 4 cycles").unwrap();
    assert_eq!(profile.up, ScaleUp { to_bytes: 16 << 20, percent: 100, cycles: 4, within: 4 });
    assert_eq!(profile.down, None);
    // As process groups of the autoscaler write it.
    let profile = Profile::parse("scale up to 6 on 70% for 4 cycles within 5\n scale down to 2 on 18% for 10 cycles");
    assert_eq!(profile.unwrap().down, Some(ScaleDown { to_bytes: 2 << 20, percent: 18, cycles: 10 }));
    let greatest = Profile::parse("scale up to 64t on 1% for 1000 cycles within 1000").unwrap();
    assert_eq!(greatest.up, ScaleUp { to_bytes: 64 << 40, percent: 1, cycles: 1000, within: 1000 });
}

/// Texts, and the line, column and reason of what is wrong with them.
const BAD: &[(&str, u32, u32, Reason)] = &[
    ("", 1, 1, Reason::Scale),
    ("  \n ", 2, 2, Reason::Scale),
    ("grow to 2g", 1, 1, Reason::Scale),
    ("/ scale up to 2g on 70% for 3 cycles", 1, 1, Reason::Scale),
    ("scale up to 2g on 70% for 3 cycles /", 1, 37, Reason::Scale),
    ("scale up to 2g on 70% for 3 cycles / within 5", 1, 38, Reason::Scale),
    ("scale up to 2g on 70% for 3 cycles\n  scales", 2, 3, Reason::Scale),
    ("scale", 1, 6, Reason::Direction),
    ("scale sideways to 2g", 1, 7, Reason::Direction),
    ("scaleup to 2g", 1, 1, Reason::Scale),
    ("scale up by 2g", 1, 10, Reason::To),
    ("scale up to", 1, 12, Reason::Size),
    ("scale up to on 70%", 1, 13, Reason::Size),
    ("scale up to -1g on 70%", 1, 13, Reason::Size),
    ("scale up to 0g on 70%", 1, 13, Reason::Size),
    ("scale up to 000 on 70%", 1, 13, Reason::Size),
    ("scale up to 2x on 70%", 1, 14, Reason::Unit),
    ("scale up to 2gb on 70%", 1, 14, Reason::Unit),
    ("scale up to 1.5g on 70%", 1, 14, Reason::Unit),
    ("scale up to 65t on 70%", 1, 13, Reason::SizeLimit),
    ("scale up to 18446744073709551615g on 70%", 1, 13, Reason::SizeLimit),
    ("scale up to 99999999999999999999999 on 70%", 1, 13, Reason::SizeLimit),
    ("scale up to 2 g on 70%", 1, 15, Reason::On),
    ("scale up to 2g at 70%", 1, 16, Reason::On),
    ("scale up to 2g on", 1, 18, Reason::Percent),
    ("scale up to 2g on 0% for", 1, 19, Reason::Percent),
    ("scale up to 2g on 101% for", 1, 19, Reason::Percent),
    ("scale up to 2g on most for", 1, 19, Reason::Percent),
    ("scale up to 2g on 99999999999999999999% for", 1, 19, Reason::Percent),
    ("scale up to 2g on 70 for 3 cycles", 1, 22, Reason::PercentSign),
    ("scale up to 2g on 70.5% for 3 cycles", 1, 21, Reason::PercentSign),
    ("scale up to 2g on 70% during 3 cycles", 1, 23, Reason::For),
    ("scale up to 2g on 70% for cycles", 1, 27, Reason::Count),
    ("scale up to 2g on 70% for 0 cycles", 1, 27, Reason::Count),
    ("scale up to 2g on 70% for 1001 cycles", 1, 27, Reason::Count),
    ("scale up to 2g on 70% for 3", 1, 28, Reason::Cycles),
    ("scale up to 2g on 70% for 3 ticks", 1, 29, Reason::Cycles),
    ("scale up to 2g on 70% for 3 cycles within", 1, 42, Reason::Window),
    ("scale up to 2g on 70% for 3 cycles within 2", 1, 43, Reason::Window),
    ("scale up to 2g on 70% for 3 cycles within 1001", 1, 43, Reason::Window),
    ("scale up to 2g on 70% for 3 cycles\nscale down to 1g on 30% for 9 cycles within 9", 2, 38, Reason::DownWindow),
    ("scale up to 2g on 70% for 3 cycles, scale up to 3g on 70% for 3 cycles", 1, 37, Reason::Twice),
    ("scale down to 2g on 7% for 3 cycles, scale down to 3g on 7% for 3 cycles", 1, 38, Reason::Twice),
    ("scale down to 256m on 30% for 20 cycles", 1, 40, Reason::NoUp),
    ("scale up to 2g on 70% for 3 cycles / scale down to 2048m on 30% for 9 cycles", 1, 52, Reason::Floor),
    ("scale down to 3g on 30% for 9 cycles / scale up to 2g on 70% for 3 cycles", 1, 15, Reason::Floor),
    ("scale up to 2g on 70% for 3 cycles / scale down to 1g on 70% for 9 cycles", 1, 58, Reason::Thresholds),
    ("scale up to 2g on 70% for 3 cycles / scale down to 1g on 30% for 9 cycles / x", 1, 77, Reason::Trailing),
    ("scale up to 2g on 70% for 3 cycles / scale down to 1g on 30% for 9 cycles /", 1, 76, Reason::Trailing),
    // Columns count characters, not bytes.
    ("scale up to 2\u{e9}\u{e9} on 70%", 1, 14, Reason::Unit),
    ("\u{a0}\u{2003}sc\u{e4}le", 1, 3, Reason::Scale),
];

const BAD_SIZES: &[(&str, u32, Reason)] = &[
    ("", 1, Reason::Size),
    ("lots", 1, Reason::Size),
    ("0:8g", 1, Reason::Size),
    (":8g", 1, Reason::Size),
    ("64m:", 5, Reason::Size),
    ("64q:8g", 3, Reason::Unit),
    ("64m:8gb", 6, Reason::Unit),
    ("64m:9999999t", 5, Reason::SizeLimit),
    ("64m-8g", 3, Reason::Unit),
    ("64m 8g", 5, Reason::Colon),
    ("64m:8g:9g", 7, Reason::Colon),
    ("8g:64m", 4, Reason::CapBelowInit),
    ("1m:2m", 4, Reason::CapLimit),
    (" 2m", 2, Reason::CapLimit),
];

#[test]
fn errors_name_the_place_and_the_reason() {
    for (text, line, column, reason) in BAD {
        let error = Error { line: *line, column: *column, reason: *reason };
        assert_eq!(Profile::parse(text), Err(error), "{text:?}");
    }
    for (text, column, reason) in BAD_SIZES {
        assert_eq!(Size::parse(text), Err(Error { line: 1, column: *column, reason: *reason }), "{text:?}");
    }
}

#[test]
fn every_reason_is_reached() {
    let seen = |reason| BAD.iter().any(|bad| bad.3 == reason) || BAD_SIZES.iter().any(|bad| bad.2 == reason);
    for reason in Reason::ALL {
        assert!(seen(*reason), "{reason:?} never comes: {}", reason.label());
    }
}

#[test]
fn sizes() {
    let size = |init_bytes, cap_bytes| Ok(Size { init_bytes, cap_bytes });
    assert_eq!(Size::parse("64m:8g"), size(64 << 20, 8 << 30));
    assert_eq!(Size::parse(" 64 : 8192 "), size(64 << 20, 8 << 30));
    assert_eq!(Size::parse("1G"), size(1 << 30, 1 << 30));
    assert_eq!(Size::parse("4k:64T"), size(4 << 10, 64 << 40));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_text_panics(text in any::<String>()) {
        let _ = (Profile::parse(&text), Size::parse(&text));
    }

    #[test]
    fn no_order_of_words_panics(words in proptest::collection::vec(prop_oneof![
        Just("scale"), Just("up"), Just("down"), Just("to"), Just("on"), Just("for"), Just("cycles"), Just("within"),
        Just("2g"), Just("70%"), Just("3"), Just("/"), Just("\n"), Just("\u{e9}"), Just("18446744073709551616")
    ], 0..40)) {
        let text = words.join(" ");
        if let Err(error) = Profile::parse(&text) {
            let line = text.split('\n').nth(error.line as usize - 1).expect("the line is there");
            prop_assert!(error.column as usize <= line.chars().count() + 1);
        }
    }

    #[test]
    fn what_is_written_by_the_rules_is_read(
        to in 2u64..=1 << 40, percent in 2u8..=100, cycles in 1u16..=1000, more in 0u16..1000,
        floor in 1u64..=1 << 40, low in 1u8..=100, quiet in 1u16..=1000,
    ) {
        let (within, floor, low) = ((cycles + more).min(1000), floor.min(to - 1), low.min(percent - 1));
        let text = format!(
            "scale up to {to}k on {percent}% for {cycles} cycles within {within}\n\
             scale down to {floor}k on {low}% for {quiet} cycles"
        );
        let profile = Profile::parse(&text);
        if to << 10 > 64 << 40 {
            prop_assert_eq!(profile.unwrap_err().reason, Reason::SizeLimit);
        } else {
            prop_assert_eq!(profile, Ok(Profile {
                up: ScaleUp { to_bytes: to << 10, percent, cycles, within },
                down: Some(ScaleDown { to_bytes: floor << 10, percent: low, cycles: quiet }),
            }));
        }
    }
}
