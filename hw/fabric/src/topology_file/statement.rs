//! One line of a topology file.

use ib_wire::Guid;
use ib_wire::smp::{LinkSpeed, LinkSpeedExt, LinkWidth};

use super::error::{TopologyProblem, quoted};
use crate::{HcaConfig, SwitchConfig};

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Statement<'t> {
    /// Nothing that matters: a comment, an empty line, or a heading of `ibnetdiscover -g`.
    Nothing,
    /// A node begins.
    Node(NodeLine<'t>),
    /// A port of the node and where its link leads.
    Port(PortLine<'t>),
    /// A value for the nodes that follow.
    Set(Variable),
    /// Another file comes here.
    Include(&'t str),
}

/// The first line of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeLine<'t> {
    pub(super) is_switch: bool,
    pub(super) ports: u8,
    pub(super) name: &'t str,
    pub(super) description: Option<&'t str>,
    pub(super) enhanced_port0: bool,
}

/// A port and where its link leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortLine<'t> {
    pub(super) port: u8,
    /// The port's GUID, where an adapter's line gives it.
    pub(super) guid: Option<Guid>,
    pub(super) remote: &'t str,
    pub(super) remote_port: u8,
    pub(super) rates: Rates,
}

/// What limits the widths and speeds of a port; `None` leaves them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rates {
    pub(super) widths: Option<LinkWidth>,
    pub(super) speeds: Option<LinkSpeed>,
    pub(super) extended_speeds: Option<LinkSpeedExt>,
}

/// A value for the nodes that follow, or for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variable {
    SwitchGuid(GuidBase),
    HcaGuid(GuidBase),
    VendorId(u32),
    DeviceId(u16),
    SystemImageGuid(Guid),
    Rates(Rates),
}

/// Where automatic GUIDs go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuidBase {
    /// Here; this is the new base.
    At(u64),
    /// So far behind the base.
    Behind(u64),
}

type Parsed<T> = Result<T, TopologyProblem>;

impl<'t> Statement<'t> {
    /// Reads a line.
    pub(super) fn parse(line: &'t str) -> Parsed<Self> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || is_heading(line) {
            return Ok(Self::Nothing);
        }
        if line.starts_with('[') {
            return parse_port(line).map(Self::Port);
        }
        let word_end = line
            .find(|c: char| !c.is_ascii_alphanumeric())
            .unwrap_or(line.len());
        let (word, rest) = line.split_at(word_end);
        match word {
            "Switch" => parse_node(rest, true).map(Self::Node),
            "Hca" | "Ca" => parse_node(rest, false).map(Self::Node),
            "Rt" => Err(TopologyProblem::Unsupported("a router")),
            "include" => Ok(Self::Include(take_quoted(rest)?.0)),
            "module" => Err(TopologyProblem::Unsupported("a name prefix (module)")),
            "do" => Err(TopologyProblem::Unsupported("a console command (do)")),
            "" if line.starts_with('@') => {
                Err(TopologyProblem::Unsupported("an alias of a port (@)"))
            }
            _ => parse_variable(word, rest)
                .unwrap_or_else(|| Err(TopologyProblem::UnknownStatement(quoted(line))))
                .map(Self::Set),
        }
    }
}

/// What `ibnetdiscover` and its option `-g` print between nodes.
fn is_heading(line: &str) -> bool {
    ["Non-Chassis Nodes", "Chassis ", "Hostname: "]
        .iter()
        .any(|heading| line.starts_with(heading))
}

/// The text in the next double quotes, and what is behind them.
fn take_quoted(text: &str) -> Parsed<(&str, &str)> {
    text.split_once('"')
        .and_then(|(_, rest)| rest.split_once('"'))
        .filter(|(name, _)| !name.is_empty())
        .ok_or(TopologyProblem::Name)
}

fn parse_node(rest: &str, is_switch: bool) -> Parsed<NodeLine<'_>> {
    let most = if is_switch {
        SwitchConfig::MAX_PORTS
    } else {
        HcaConfig::MAX_PORTS
    };
    let (before, _) = rest.split_once('"').ok_or(TopologyProblem::Name)?;
    let ports = parse_number(before.trim())
        .and_then(|number| u8::try_from(number).ok())
        .filter(|ports| (1..=most).contains(ports))
        .ok_or_else(|| TopologyProblem::PortCount {
            most,
            found: quoted(before.trim()),
        })?;
    let (name, rest) = take_quoted(rest)?;
    let (description, rest) = split_description(rest);
    Ok(NodeLine {
        is_switch,
        ports,
        name,
        description,
        enhanced_port0: rest.contains("enhanced port 0"),
    })
}

/// The description behind `#`, in quotes or up to what `ibnetdiscover` puts behind it, and the rest.
/// A description in quotes may hold quotes: it ends with the line's last.
fn split_description(rest: &str) -> (Option<&str>, &str) {
    let Some((_, comment)) = rest.split_once('#') else {
        return (None, "");
    };
    let comment = comment.trim();
    let (text, rest) = match comment.strip_prefix('"') {
        Some(text) => text.rsplit_once('"').unwrap_or((text, "")),
        None => {
            let end = [" enhanced port ", " base port ", " lid ", " lmc "]
                .iter()
                .filter_map(|word| comment.find(word))
                .min()
                .unwrap_or(comment.len());
            comment.split_at(end)
        }
    };
    (Some(text.trim()).filter(|text| !text.is_empty()), rest)
}

fn parse_port(line: &str) -> Parsed<PortLine<'_>> {
    let (front, _) = line.split_once('"').ok_or(TopologyProblem::Name)?;
    let (port, front) = take_port(front)?;
    let (remote, behind) = take_quoted(line)?;
    let (remote_port, behind) = if behind.trim_start().starts_with('[') {
        take_port(behind)?
    } else {
        (1, behind)
    };
    let (options, comment) = behind.split_once('#').unwrap_or((behind, ""));
    let mut rates = Rates::default();
    parse_options(options, &mut rates)?;
    // Descriptions are in quotes; what tells of the link stands behind the last.
    let tail = comment.rsplit_once('"').map_or(comment, |(_, tail)| tail);
    parse_link(tail, &mut rates);
    Ok(PortLine {
        port,
        guid: own_guid(front),
        remote,
        remote_port,
        rates,
    })
}

/// A port number in brackets, and what is behind it and any `[ext n]`.
fn take_port(text: &str) -> Parsed<(u8, &str)> {
    let text = text.trim_start();
    let (inside, rest) = text
        .strip_prefix('[')
        .and_then(|text| text.split_once(']'))
        .unwrap_or((text, ""));
    let port = parse_number(inside.trim())
        .and_then(|number| u8::try_from(number).ok())
        .filter(|port| *port != 0)
        .ok_or_else(|| TopologyProblem::Port {
            most: u8::MAX,
            found: quoted(inside),
        })?;
    let rest = match rest.strip_prefix("[ext ") {
        Some(external) => external.split_once(']').map_or("", |(_, rest)| rest),
        None => rest,
    };
    Ok((port, rest))
}

/// The GUID in parentheses behind an adapter's own port; hexadecimal without `0x`.
fn own_guid(front: &str) -> Option<Guid> {
    let inside = front.trim().strip_prefix('(')?.split_once(')')?.0;
    u64::from_str_radix(inside.trim(), 16)
        .ok()
        .filter(|guid| *guid != 0)
        .map(Guid::new)
}

/// `w=`, `s=` and `e=`; options that only other programs know are passed over.
fn parse_options(options: &str, rates: &mut Rates) -> Parsed<()> {
    for option in options.split_ascii_whitespace() {
        match option.split_once('=') {
            Some(("w", value)) => rates.widths = Some(width(value)?),
            Some(("s", value)) => rates.speeds = Some(speed(value)?),
            Some(("e", value)) => rates.extended_speeds = Some(extended_speed(value)?),
            _ => {}
        }
    }
    Ok(())
}

/// `lid 4 4xQDR`, as `ibnetdiscover` ends a port's line, and what its option `-f` adds. The width and
/// speed are the link's; the port takes part in all that are smaller.
fn parse_link(tail: &str, rates: &mut Rates) {
    let mut words = tail.split_ascii_whitespace();
    if words.next() != Some("lid") || words.next().is_none_or(|lid| lid.parse::<u16>().is_err()) {
        return;
    }
    let Some((lanes, rate)) = words.next().and_then(|word| word.split_once('x')) else {
        return;
    };
    let smaller = LinkWidth::X1.0;
    let widths = match lanes {
        "1" => Some(smaller),
        "2" => Some(smaller | LinkWidth::X2.0),
        "4" => Some(smaller | LinkWidth::X4.0),
        "8" => Some(smaller | LinkWidth::X4.0 | LinkWidth::X8.0),
        "12" => Some(smaller | LinkWidth::X4.0 | LinkWidth::X12.0),
        _ => None,
    };
    // FDR10 and XDR are not among the speeds of an emulated link: the next smaller take their place.
    let speeds = match rate {
        "SDR" => Some((1, 0)),
        "DDR" => Some((3, 0)),
        "QDR" | "FDR10" => Some((7, 0)),
        "FDR" => Some((7, 1)),
        "EDR" => Some((7, 3)),
        "HDR" => Some((7, 7)),
        "NDR" | "XDR" => Some((7, 15)),
        _ => None,
    };
    if let Some(bits) = widths {
        rates.widths = Some(LinkWidth(bits));
    }
    if let Some((plain, extended)) = speeds {
        rates.speeds = Some(LinkSpeed::from_low_bits(plain));
        rates.extended_speeds = Some(LinkSpeedExt::from_low_bits(extended));
    }
}

fn parse_variable(word: &str, rest: &str) -> Option<Parsed<Variable>> {
    let rest = rest.trim_start();
    let value = rest.strip_prefix('=');
    let base = || {
        let relative = rest.strip_prefix('+');
        let number = guid_number(value.or(relative).unwrap_or(rest))?;
        Ok(match value {
            Some(_) => GuidBase::At(number),
            None => GuidBase::Behind(number),
        })
    };
    let value = value.unwrap_or("");
    let rates = Rates::default();
    Some(match word {
        "switchguid" => base().map(Variable::SwitchGuid),
        "caguid" | "hcaguids" => base().map(Variable::HcaGuid),
        "rtguid" => Err(TopologyProblem::Unsupported("a router")),
        "vendid" => in_range(value, "vendid", "a number of 24 bits", |n| {
            u32::try_from(n).ok().filter(|id| *id <= 0x00ff_ffff)
        })
        .map(Variable::VendorId),
        "devid" => in_range(value, "devid", "a number of 16 bits", |n| {
            u16::try_from(n).ok()
        })
        .map(Variable::DeviceId),
        "sysimgguid" => guid_number(value).map(|guid| Variable::SystemImageGuid(Guid::new(guid))),
        "width" => width(value).map(|widths| {
            Variable::Rates(Rates {
                widths: Some(widths),
                ..rates
            })
        }),
        "speed" => speed(value).map(|speeds| {
            Variable::Rates(Rates {
                speeds: Some(speeds),
                ..rates
            })
        }),
        "extspeed" => extended_speed(value).map(|speeds| {
            Variable::Rates(Rates {
                extended_speeds: Some(speeds),
                ..rates
            })
        }),
        _ => return None,
    })
}

fn width(value: &str) -> Parsed<LinkWidth> {
    let wanted = "a sum of 1 (1x), 2 (4x), 4 (8x), 8 (12x) and 16 (2x)";
    in_range(value, "the width", wanted, |number| {
        u8::try_from(number)
            .ok()
            .filter(|bits| (1..=31).contains(bits))
            .map(LinkWidth)
    })
}

fn speed(value: &str) -> Parsed<LinkSpeed> {
    let wanted = "a sum of 1 (SDR), 2 (DDR) and 4 (QDR)";
    in_range(value, "the speed", wanted, |number| {
        let bits = u8::try_from(number).ok().filter(|bits| *bits <= 7)?;
        // 0 stands for the fastest.
        Some(if bits == 0 {
            LinkSpeed::QDR
        } else {
            LinkSpeed::from_low_bits(bits)
        })
    })
}

fn extended_speed(value: &str) -> Parsed<LinkSpeedExt> {
    let wanted = "0 or a sum of 1 (FDR), 2 (EDR), 4 (HDR) and 8 (NDR)";
    in_range(value, "the extended speed", wanted, |number| {
        u8::try_from(number)
            .ok()
            .filter(|bits| *bits <= 15)
            .map(LinkSpeedExt::from_low_bits)
    })
}

fn guid_number(value: &str) -> Parsed<u64> {
    in_range(value, "a GUID", "a number of 64 bits", |number| {
        Some(number).filter(|guid| *guid != 0)
    })
}

/// The number at the front of a value; behind it may stand a remark, or a GUID in parentheses.
fn in_range<T>(
    value: &str,
    name: &'static str,
    wanted: &'static str,
    check: impl FnOnce(u64) -> Option<T>,
) -> Parsed<T> {
    let value = value.trim_start();
    let end = value
        .find(|c: char| c.is_ascii_whitespace() || matches!(c, '(' | '#'))
        .unwrap_or(value.len());
    parse_number(&value[..end])
        .and_then(check)
        .ok_or_else(|| TopologyProblem::Value {
            name,
            wanted,
            found: quoted(&value[..end]),
        })
}

/// A decimal number, or a hexadecimal one behind `0x`.
fn parse_number(text: &str) -> Option<u64> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, radix) = hex.map_or((text, 10), |digits| (digits, 16));
    let is_unsigned = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(digits, radix)
        .ok()
        .filter(|_| is_unsigned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(line: &str) -> NodeLine<'_> {
        match Statement::parse(line) {
            Ok(Statement::Node(node)) => node,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn port(line: &str) -> PortLine<'_> {
        match Statement::parse(line) {
            Ok(Statement::Port(port)) => port,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_first_line_of_a_node_is_read_in_both_styles() {
        let line = "Switch\t36 \"S-0002c90300000100\"\t\t# \"edge \"7\" left\" enhanced port 0 lid 6 lmc 0";
        assert_eq!(
            node(line),
            NodeLine {
                is_switch: true,
                ports: 36,
                name: "S-0002c90300000100",
                description: Some("edge \"7\" left"),
                enhanced_port0: true,
            }
        );
        let plain = node("Hca 2 \"Hca1\"");
        assert_eq!((plain.is_switch, plain.ports), (false, 2));
        assert_eq!((plain.name, plain.description), ("Hca1", None));
        let described = node("Switch 8 \"left\"  # left side base port 0 lid 1");
        assert_eq!(described.description, Some("left side"));
        assert!(!described.enhanced_port0);
        assert_eq!(node("Ca\t1 \"H\"\t\t# \"\"").description, None);
    }

    #[test]
    fn a_port_has_its_guid_its_peer_and_the_link_of_a_dump() {
        let line = "[1](2c90300000101) \t\"S-0002c90300000100\"[6]\t\t# lid 16 lmc 1 \"w=1 #x\" lid 3 4xEDR s=4 w=2 v=4";
        let read = port(line);
        assert_eq!((read.port, read.remote_port), (1, 6));
        assert_eq!(read.guid, Some(Guid::new(0x2_c903_0000_0101)));
        assert_eq!(read.remote, "S-0002c90300000100");
        let rates = read.rates;
        assert_eq!(rates.widths, Some(LinkWidth(3)));
        assert_eq!(rates.speeds, Some(LinkSpeed::from_low_bits(7)));
        assert_eq!(rates.extended_speeds, Some(LinkSpeedExt::from_low_bits(3)));
        let grouped = port("[3][ext 7]\t\"S-1\"[20][ext 2]\t\t# \"s\" lid 3 12xQDR");
        assert_eq!((grouped.port, grouped.remote_port), (3, 20));
        assert_eq!(grouped.rates.widths, Some(LinkWidth(11)));
    }

    #[test]
    fn a_port_takes_options_and_leads_to_port_1_if_none_is_said() {
        let read = port("[4] \"Hca1\" w=2 s=0 e=0 v=7");
        assert_eq!((read.port, read.remote_port, read.guid), (4, 1, None));
        assert_eq!(
            read.rates,
            Rates {
                widths: Some(LinkWidth::X4),
                speeds: Some(LinkSpeed::QDR),
                extended_speeds: Some(LinkSpeedExt::NONE),
            }
        );
        assert_eq!(port("[4] \"Hca1\"[2] # w=2").rates, Rates::default());
    }

    #[test]
    fn values_are_set_with_remarks_behind_them() {
        for (line, value) in [
            (
                "switchguid=0x5442ba00003080(5442ba00003080)\t# Spine 2",
                Variable::SwitchGuid(GuidBase::At(0x54_42ba_0000_3080)),
            ),
            ("caguid = 7", Variable::HcaGuid(GuidBase::At(7))),
            ("caguid+0x10", Variable::HcaGuid(GuidBase::Behind(16))),
            ("vendid=0x2c9", Variable::VendorId(0x2c9)),
            ("devid=0x5a44", Variable::DeviceId(0x5a44)),
            (
                "sysimgguid=0x10\t\t# Chassis 1",
                Variable::SystemImageGuid(Guid::new(16)),
            ),
        ] {
            assert_eq!(Statement::parse(line), Ok(Statement::Set(value)), "{line}");
        }
    }

    #[test]
    fn what_says_nothing_is_passed_over() {
        for line in ["", "  ", "# x", "Non-Chassis Nodes", "Chassis 1 (guid 0x2)"] {
            assert_eq!(Statement::parse(line), Ok(Statement::Nothing), "{line}");
        }
    }

    #[test]
    fn wrong_lines_are_refused_with_the_reason() {
        for (line, reason) in [
            ("Swich 8 \"x\"", "\"Swich 8 \\\"x\\\"\" is no statement"),
            ("Switch 8", "a name in double quotes is wanted"),
            ("Switch 8 \"x", "a name in double quotes is wanted"),
            ("Switch 8 \"\"", "a name in double quotes is wanted"),
            (
                "Switch \"x\"",
                "a number of ports from 1 to 254 is wanted, not \"\"",
            ),
            (
                "Switch 255 \"x\"",
                "a number of ports from 1 to 254 is wanted, not \"255\"",
            ),
            (
                "Hca 0 \"x\"",
                "a number of ports from 1 to 2 is wanted, not \"0\"",
            ),
            ("[0] \"x\"[1]", "a port from 1 to 255 is wanted, not \"0\""),
            (
                "[1] \"x\"[300]",
                "a port from 1 to 255 is wanted, not \"300\"",
            ),
            ("[1 \"x\"[1]", "a port from 1 to 255 is wanted, not \"[1 \""),
            ("[1]", "a name in double quotes is wanted"),
            (
                "[1] \"x\"[1] w=32",
                "the width must be a sum of 1 (1x), 2 (4x), 4 (8x), 8 (12x) and 16 (2x), not \"32\"",
            ),
            (
                "speed=8",
                "the speed must be a sum of 1 (SDR), 2 (DDR) and 4 (QDR), not \"8\"",
            ),
            (
                "extspeed=+1",
                "the extended speed must be 0 or a sum of 1 (FDR), 2 (EDR), 4 (HDR) and 8 (NDR), not \"+1\"",
            ),
            (
                "devid=0x10000",
                "devid must be a number of 16 bits, not \"0x10000\"",
            ),
            ("vendid=", "vendid must be a number of 24 bits, not \"\""),
            ("caguid=0", "a GUID must be a number of 64 bits, not \"0\""),
            ("switchguid", "a GUID must be a number of 64 bits, not \"\""),
            ("include net", "a name in double quotes is wanted"),
            ("Rt 2 \"R-1\"", "a router cannot be emulated"),
            ("do Link \"x\"", "a console command (do) cannot be emulated"),
            ("@[1] \"x\"", "an alias of a port (@) cannot be emulated"),
        ] {
            assert_eq!(
                Statement::parse(line).unwrap_err().to_string(),
                reason,
                "{line}"
            );
        }
    }
}
