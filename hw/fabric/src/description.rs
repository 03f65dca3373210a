//! Descriptions of the nodes of a site: `name@site`.

use ib_wire::smp::NodeDescription;

/// Returns the description of a node at a site: of a long name so much that the site still has its place.
pub(crate) fn described(name: &str, site: Option<&str>) -> NodeDescription {
    let Some(site) = site else {
        return NodeDescription::new(name);
    };
    let room = size_of::<NodeDescription>().saturating_sub(1 + site.len());
    let ends = name.char_indices().map(|(at, of)| at + of.len_utf8());
    let end = ends.take_while(|end| *end <= room).last().unwrap_or(0);
    let name = name.get(..end).unwrap_or_default();
    NodeDescription::new(&format!("{name}@{site}"))
}

/// Returns the name in a description: all of it if no `@` and site are at its end.
pub(crate) fn name_in<'t>(description: &'t str, site: Option<&str>) -> &'t str {
    let of_site = |site| description.strip_suffix(site)?.strip_suffix('@');
    site.and_then(of_site).unwrap_or(description)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_a_site_is_described_by_both_names_and_called_by_its_own() {
        for (name, site, description) in [
            ("H1-1", None, "H1-1"),
            ("H1-1", Some("leaf"), "H1-1@leaf"),
            ("a@b", Some("leaf"), "a@b@leaf"),
            ("", Some("leaf"), "@leaf"),
        ] {
            let described = described(name, site);
            assert_eq!(described.as_str(), Some(description));
            assert_eq!(name_in(description, site), name);
        }
    }

    #[test]
    fn a_description_that_was_written_by_others_is_the_name() {
        for renamed in ["renamed", "leaf", "H1-1@spine"] {
            assert_eq!(name_in(renamed, Some("leaf")), renamed);
        }
    }

    #[test]
    fn the_site_of_a_node_with_a_long_name_is_in_its_description_nonetheless() {
        let long = described(&"\u{e9}".repeat(40), Some("leaf"));
        let wanted = format!("{}@leaf", "\u{e9}".repeat(29));
        assert_eq!(long.as_str(), Some(wanted.as_str()));
        let site = "s".repeat(63);
        let alone = described("H1-1", Some(&site));
        assert_eq!(alone.as_str(), Some(format!("@{site}").as_str()));
    }
}
