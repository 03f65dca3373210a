//! Whole numbers as arguments.

use core::ops::RangeInclusive;

use clap::Command;

/// Returns a parser of numbers, whose refusal names the range.
pub(super) fn number<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| parse(text, &range)
}

/// Parses a number that must be within a range.
pub(super) fn parse<T: TryFrom<u64>>(text: &str, range: &RangeInclusive<u64>) -> Result<T, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    let number = number.and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| {
        let (least, most) = (range.start(), range.end());
        format!("expected a whole number from {least} to {most}")
    })
}

/// Makes all arguments of a command take negative numbers as values, so that each is refused for its range rather than as
/// an unknown option.
pub(super) fn take_negative_numbers(command: Command) -> Command {
    let command = command.mut_args(|argument| {
        let takes = argument.get_action().takes_values();
        let takes = takes && !argument.is_allow_hyphen_values_set();
        argument.allow_negative_numbers(takes)
    });
    command.mut_subcommands(take_negative_numbers)
}
