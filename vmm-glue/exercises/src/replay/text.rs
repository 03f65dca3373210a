//! How quantities stand in a script: GUIDs and keys as `"0x..."`, GIDs as IPv6, MADs as hexadecimal
//! digits, and objects as objects only.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::marker::PhantomData;

use ib_wire::{Lmc, Qpn, Sl};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};

/// A number that is written as `0x` and up to 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hex<T>(pub(super) T);

impl<'de, T: TryFrom<u64>> Deserialize<'de> for Hex<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits = text.strip_prefix("0x").unwrap_or_default();
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            let reason = format_args!("`{text}` is not `0x` and hexadecimal digits");
            return Err(D::Error::custom(reason));
        }
        u64::from_str_radix(digits, 16)
            .ok()
            .and_then(|value| T::try_from(value).ok())
            .map(Self)
            .ok_or_else(|| D::Error::custom(format_args!("`{text}` is too large")))
    }
}

/// Bytes that are written as two hexadecimal digits each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HexBytes(pub(super) Vec<u8>);

impl HexBytes {
    fn parse(text: &str) -> Result<Self, String> {
        let digits = text
            .bytes()
            .enumerate()
            .map(|(place, byte)| {
                char::from(byte)
                    .to_digit(16)
                    .and_then(|digit| u8::try_from(digit).ok())
                    .ok_or_else(|| format!("digit {} is not hexadecimal", place + 1))
            })
            .collect::<Result<Vec<u8>, _>>()?;
        let pairs = digits.chunks_exact(2);
        if !pairs.remainder().is_empty() {
            let count = digits.len();
            return Err(format!("{count} hexadecimal digits are not whole bytes"));
        }
        Ok(Self(pairs.map(|pair| pair[0] << 4 | pair[1]).collect()))
    }
}

impl<'de> Deserialize<'de> for HexBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// Bytes to be written as two hexadecimal digits each.
#[derive(Clone, Copy, Debug)]
pub(super) struct AsHex<'a>(pub(super) &'a [u8]);

impl Serialize for AsHex<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
        let digits: String = self
            .0
            .iter()
            .flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)])
            .collect();
        serializer.serialize_str(&digits)
    }
}

/// A value to be written as it is displayed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown<T>(pub(super) T);

impl<T: Display> Serialize for Shown<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// Something that is written as an object, and not as a list of its fields either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

/// Values by the numbers of what has them, each number once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ByNumber<T>(pub(super) BTreeMap<u64, T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for ByNumber<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ByNumberVisitor(PhantomData))
    }
}

struct ByNumberVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ByNumberVisitor<T> {
    type Value = ByNumber<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut values = BTreeMap::new();
        while let Some((number, value)) = map.next_entry::<u64, T>()? {
            // A map by itself would keep the last.
            if values.insert(number, value).is_some() {
                let reason = format_args!("duplicate number `{number}`");
                return Err(A::Error::custom(reason));
            }
        }
        Ok(ByNumber(values))
    }
}

/// Defines a reader of a JSON number that a quantity's constructor checks.
macro_rules! number {
    ($(#[$meta:meta])* $name:ident, $int:ty => $quantity:ty, $reason:literal) => {
        $(#[$meta])*
        pub(super) fn $name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<$quantity, D::Error> {
            let value = <$int>::deserialize(deserializer)?;
            <$quantity>::new(value)
                .ok_or_else(|| D::Error::custom(format_args!(concat!("{} is ", $reason), value)))
        }
    };
}

number! {
    /// Reads a service level.
    sl, u8 => Sl, "no service level; it can be 0 to 15"
}
number! {
    /// Reads a LID mask count.
    lmc, u8 => Lmc, "no LID mask count; it can be 0 to 7"
}
number! {
    /// Reads a queue pair number.
    qpn, u32 => Qpn, "no queue pair number; it has 24 bits"
}

/// Reads a flow label.
pub(super) fn flow_label<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let value = u32::deserialize(deserializer)?;
    if value >> 20 != 0 {
        let reason = format_args!("{value} is no flow label; it has 20 bits");
        return Err(D::Error::custom(reason));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<'de, T: Deserialize<'de>>(json: &'de str) -> Result<T, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    fn reason<'de, T: Deserialize<'de> + fmt::Debug>(json: &'de str) -> String {
        read::<T>(json).unwrap_err()
    }

    #[test]
    fn hexadecimal_numbers_are_read_in_either_case_and_any_width() {
        assert_eq!(
            read::<Hex<u64>>("\"0x0002c903000000fF\"").unwrap(),
            Hex(0x0002_c903_0000_00ff)
        );
        assert_eq!(read::<Hex<u16>>("\"0x5\"").unwrap(), Hex(5));
        assert_eq!(read::<Hex<u16>>("\"0x000000ffff\"").unwrap(), Hex(0xffff));
    }

    #[test]
    fn hexadecimal_numbers_without_prefix_or_digits_are_refused() {
        for json in [
            "\"ffff\"", "\"0x\"", "\"0x+1\"", "\"0xg\"", "\"\"", "\"0X1\"",
        ] {
            let reason = reason::<Hex<u16>>(json);
            assert!(
                reason.contains("is not `0x` and hexadecimal digits"),
                "{reason}"
            );
        }
        assert!(reason::<Hex<u16>>("65535").contains("expected a string"));
    }

    #[test]
    fn hexadecimal_numbers_beyond_their_width_are_refused() {
        assert!(reason::<Hex<u16>>("\"0x10000\"").contains("`0x10000` is too large"));
        let long = "\"0x10000000000000000\"";
        assert!(reason::<Hex<u64>>(long).contains("is too large"));
    }

    #[test]
    fn bytes_are_written_as_they_are_read() {
        let bytes = read::<HexBytes>("\"00fFa5\"").unwrap();
        assert_eq!(bytes.0, [0, 0xff, 0xa5]);
        assert_eq!(
            serde_json::to_string(&AsHex(&bytes.0)).unwrap(),
            "\"00ffa5\""
        );
        assert!(read::<HexBytes>("\"\"").unwrap().0.is_empty());
    }

    #[test]
    fn digits_that_are_not_hexadecimal_are_named_by_their_place() {
        let message = reason::<HexBytes>("\"00zz\"");
        assert!(message.contains("digit 3 is not hexadecimal"), "{message}");
        let message = reason::<HexBytes>("\"é0\"");
        assert!(message.contains("digit 1 is not hexadecimal"), "{message}");
    }

    #[test]
    fn an_odd_number_of_digits_is_refused() {
        let message = reason::<HexBytes>("\"012\"");
        assert!(
            message.contains("3 hexadecimal digits are not whole bytes"),
            "{message}"
        );
    }

    #[test]
    fn an_object_is_not_read_from_a_list_of_its_fields() {
        #[derive(Debug, serde::Deserialize)]
        struct Pair {
            #[expect(dead_code, reason = "only its reading is tested")]
            a: u8,
        }
        assert!(read::<Object<Pair>>("{\"a\":1}").is_ok());
        assert!(reason::<Object<Pair>>("[1]").contains("expected an object"));
    }

    #[test]
    fn a_number_has_one_value() {
        let values = read::<ByNumber<u8>>("{\"2\":3,\"1\":3}").unwrap();
        assert_eq!(values.0, BTreeMap::from([(1, 3), (2, 3)]));
        let twice = reason::<ByNumber<u8>>("{\"1\":3,\"2\":3,\"1\":3}");
        assert!(twice.contains("duplicate number `1`"), "{twice}");
        let another = reason::<ByNumber<u8>>("{\"x\":3}");
        assert!(another.contains("number in quotes"), "{another}");
        assert!(reason::<ByNumber<u8>>("[3]").contains("expected an object"));
    }
}
