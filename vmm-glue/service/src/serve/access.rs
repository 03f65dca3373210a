//! Who may connect to the sockets of a service: owner, group and mode of each.

use core::fmt;
use core::str::FromStr;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, chmod, chownat};
use rustix::process::{Gid, Uid, getegid, geteuid, getuid};
use serde::Deserialize;
use thiserror::Error;
use vf_tunnel::VfId;

use super::accounts;

/// A socket of the service, or the sockets of several VFs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub enum SocketName {
    /// `control`: the control socket.
    Control,
    /// `umad`: the socket for programs that use Linux' umad.
    Umad,
    /// `verbs`: the socket for programs that use Linux' verbs.
    Verbs,
    /// `all`: the sockets of all VFs.
    AllVfs,
    /// `HOST/all`: those of one host's VFs.
    VfsOf(String),
    /// `HOST/N`: that of one VF.
    Vf(String, VfId),
}

/// Why access to sockets cannot be as it is wanted.
#[derive(Debug, Error)]
pub enum AccessError {
    /// A text names no socket.
    #[error("{0:?} is no socket of the service: say control, umad, verbs, all, HOST/all or HOST/N")]
    Name(String),
    /// A text is no access.
    #[error("{0:?}: expected SOCKET=OWNER:GROUP:MODE, of which parts can be empty")]
    Form(String),
    /// A text is no mode.
    #[error("{0:?} is no mode of a socket: say octal digits of r and w, such as 0660")]
    Mode(String),
    /// There is no such user.
    #[error("there is no user {0:?}")]
    NoUser(String),
    /// There is no such group.
    #[error("there is no group {0:?}")]
    NoGroup(String),
    /// The users and groups of the machine cannot be read.
    #[error("cannot look up {0:?}")]
    Accounts(String, #[source] io::Error),
    /// There is no such VF.
    #[error("access to {0}: no VF of that name is offered; vhca show vfs lists them")]
    NoVf(SocketName),
}

impl fmt::Display for SocketName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Control => f.write_str("control"),
            Self::Umad => f.write_str("umad"),
            Self::Verbs => f.write_str("verbs"),
            Self::AllVfs => f.write_str("all"),
            Self::VfsOf(host) => write!(f, "{host}/all"),
            Self::Vf(host, vf) => write!(f, "{host}/{}", vf.get()),
        }
    }
}

impl SocketName {
    /// Returns `true` if it names VFs.
    pub(super) const fn is_of_vfs(&self) -> bool {
        matches!(self, Self::AllVfs | Self::VfsOf(_) | Self::Vf(..))
    }
}

impl FromStr for SocketName {
    type Err = AccessError;

    fn from_str(text: &str) -> Result<Self, AccessError> {
        match text {
            "control" => return Ok(Self::Control),
            "umad" => return Ok(Self::Umad),
            "verbs" => return Ok(Self::Verbs),
            "all" => return Ok(Self::AllVfs),
            _ => {}
        }
        let wrong = || AccessError::Name(text.to_owned());
        let (host, number) = text.rsplit_once('/').ok_or_else(wrong)?;
        if number == "all" {
            return Ok(Self::VfsOf(host.to_owned()));
        }
        let digits = number.strip_prefix("vf").unwrap_or(number);
        let vf = digits.parse().ok().and_then(VfId::new).ok_or_else(wrong)?;
        Ok(Self::Vf(host.to_owned(), vf))
    }
}

impl TryFrom<String> for SocketName {
    type Error = AccessError;

    fn try_from(text: String) -> Result<Self, AccessError> {
        text.parse()
    }
}

/// The mode of a socket: who may read and write, in octal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct SocketMode(Mode);

impl FromStr for SocketMode {
    type Err = AccessError;

    fn from_str(text: &str) -> Result<Self, AccessError> {
        let bits = u32::from_str_radix(text, 8).ok();
        let bits = bits.filter(|bits| bits & !0o666 == 0 && !text.starts_with('+'));
        let bits = bits.ok_or_else(|| AccessError::Mode(text.to_owned()))?;
        Ok(Self(Mode::from_raw_mode(bits)))
    }
}

impl TryFrom<String> for SocketMode {
    type Error = AccessError;

    fn try_from(text: String) -> Result<Self, AccessError> {
        text.parse()
    }
}

/// Owner, group and mode of sockets as an operator gives them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessSpec {
    /// User, by name or number.
    pub owner: Option<String>,
    /// Group, by name or number.
    pub group: Option<String>,
    /// Mode.
    pub mode: Option<SocketMode>,
}

/// What an operator gives for one name: `SOCKET=OWNER:GROUP:MODE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRule {
    /// The sockets.
    pub name: SocketName,
    /// Who may connect to them.
    pub access: AccessSpec,
}

impl FromStr for AccessRule {
    type Err = AccessError;

    fn from_str(text: &str) -> Result<Self, AccessError> {
        let wrong = || AccessError::Form(text.to_owned());
        let (name, access) = text.rsplit_once('=').ok_or_else(wrong)?;
        let mut parts = access.split(':');
        let mut part = || parts.next().filter(|part| !part.is_empty());
        let access = AccessSpec {
            owner: part().map(str::to_owned),
            group: part().map(str::to_owned),
            mode: part().map(str::parse).transpose()?,
        };
        if parts.next().is_some() || access == AccessSpec::default() {
            return Err(wrong());
        }
        let name = name.parse()?;
        Ok(Self { name, access })
    }
}

/// Owner, group and mode of a socket, as far as they are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Access {
    owner: Option<Uid>,
    group: Option<Gid>,
    mode: Option<Mode>,
}

impl Access {
    fn resolve(spec: &AccessSpec) -> Result<Self, AccessError> {
        Ok(Self {
            owner: spec.owner.as_deref().map(find_user).transpose()?,
            group: spec.group.as_deref().map(find_group).transpose()?,
            mode: spec.mode.map(|mode| mode.0),
        })
    }

    /// Returns this, with what it leaves open from a more general one.
    fn or(self, general: Self) -> Self {
        Self {
            owner: self.owner.or(general.owner),
            group: self.group.or(general.group),
            mode: self.mode.or(general.mode),
        }
    }

    /// The mode: a group that was given can connect, nobody else besides the owner.
    pub(super) fn mode(&self) -> Mode {
        let default = if self.group.is_some() { 0o660 } else { 0o600 };
        self.mode.unwrap_or_else(|| Mode::from_raw_mode(default))
    }

    /// Returns `true` if others than the service's own user may connect.
    pub(super) fn is_shared(&self) -> bool {
        self.owner.is_some() || self.mode().intersects(Mode::WGRP | Mode::WOTH)
    }

    /// Opens a socket of mode 0600 to those who may connect. The owner comes last: until then nobody else can replace
    /// the file.
    pub(super) fn apply(&self, path: &Path) -> rustix::io::Result<()> {
        let no_follow = AtFlags::SYMLINK_NOFOLLOW;
        if self.group.is_some() {
            chownat(CWD, path, None, self.group, no_follow)?;
        }
        chmod(path, self.mode())?;
        if self.owner.is_some() {
            chownat(CWD, path, self.owner, None, no_follow)?;
        }
        Ok(())
    }

    /// Opens a folder of this user to those who may connect, so that they can look into it.
    pub(super) fn apply_to_folder(&self, path: &Path) -> rustix::io::Result<()> {
        let no_follow = AtFlags::SYMLINK_NOFOLLOW;
        if self.group.is_some() {
            chownat(CWD, path, None, self.group, no_follow)?;
        }
        // A socket is connected to by who may write.
        let write = self.mode().bits() & 0o022;
        chmod(path, Mode::from_raw_mode(0o700 | write << 1 | write >> 1))?;
        if self.owner.is_some() {
            chownat(CWD, path, self.owner, None, no_follow)?;
        }
        Ok(())
    }

    /// Returns `false` if a folder surely keeps those who may connect from what is in it.
    pub(super) fn can_search(&self, folder: &Metadata) -> bool {
        let mode = folder.mode();
        let group = self.group.unwrap_or_else(getegid).as_raw();
        let of_owner = self
            .owner
            .is_some_and(|owner| owner.as_raw() == folder.uid());
        // Which groups the owner is in is not known here.
        let of_group = self.owner.is_some() || group == folder.gid();
        mode & 0o001 != 0 || of_group && mode & 0o010 != 0 || of_owner && mode & 0o100 != 0
    }
}

/// Users of this machine: root, the user of this process, and those that an operator names.
#[derive(Clone, Debug)]
pub struct Users(BTreeSet<u32>);

impl Default for Users {
    fn default() -> Self {
        let users = [Uid::ROOT, getuid(), geteuid()];
        Self(users.into_iter().map(Uid::as_raw).collect())
    }
}

impl Users {
    /// Adds users by name or number.
    ///
    /// # Errors
    /// [`AccessError`] if there is no such user.
    pub fn with(names: &[String]) -> Result<Self, AccessError> {
        let mut users = Self::default();
        for name in names {
            users.0.insert(find_user(name)?.as_raw());
        }
        Ok(users)
    }

    /// Returns `true` if a user is one of them.
    pub(super) fn contains(&self, user: Uid) -> bool {
        self.0.contains(&user.as_raw())
    }
}

fn find_user(name: &str) -> Result<Uid, AccessError> {
    let user = accounts::user(name);
    let user = user.map_err(|error| AccessError::Accounts(name.to_owned(), error))?;
    user.ok_or_else(|| AccessError::NoUser(name.to_owned()))
}

fn find_group(name: &str) -> Result<Gid, AccessError> {
    let group = accounts::group(name);
    let group = group.map_err(|error| AccessError::Accounts(name.to_owned(), error))?;
    group.ok_or_else(|| AccessError::NoGroup(name.to_owned()))
}

/// Who may connect to which socket.
#[derive(Clone, Debug, Default)]
pub(super) struct AccessTable(BTreeMap<SocketName, Access>);

impl AccessTable {
    /// Looks up whom the operator's rules name.
    pub(super) fn resolve(rules: &BTreeMap<SocketName, AccessSpec>) -> Result<Self, AccessError> {
        let rules = rules
            .iter()
            .map(|(name, spec)| Ok((name.clone(), Access::resolve(spec)?)));
        Ok(Self(rules.collect::<Result<_, AccessError>>()?))
    }

    /// Who may connect to a socket: what is said of it, then of its host's, then of all.
    pub(super) fn of(&self, name: &SocketName) -> Access {
        let given = |name: &SocketName| self.0.get(name).copied().unwrap_or_default();
        match name {
            SocketName::Control | SocketName::Umad | SocketName::Verbs | SocketName::AllVfs => {
                given(name)
            }
            SocketName::VfsOf(_) => given(name).or(given(&SocketName::AllVfs)),
            SocketName::Vf(host, _) => given(name).or(self.of(&SocketName::VfsOf(host.clone()))),
        }
    }

    /// Returns `true` if others than the service's own user may connect to some VF.
    pub(super) fn shares_vfs(&self) -> bool {
        self.vfs().any(|name| self.of(name).is_shared())
    }

    /// The names of VFs for which there are rules.
    pub(super) fn vfs(&self) -> impl Iterator<Item = &SocketName> {
        self.0.keys().filter(|name| name.is_of_vfs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rules: &[&str]) -> Result<AccessTable, AccessError> {
        let rules = rules.iter().map(|rule| rule.parse::<AccessRule>());
        let rules = rules.map(|rule| rule.map(|rule| (rule.name, rule.access)));
        AccessTable::resolve(&rules.collect::<Result<_, _>>()?)
    }

    fn name(text: &str) -> SocketName {
        text.parse().unwrap()
    }

    #[test]
    fn what_is_said_of_a_vf_comes_before_what_is_said_of_all() {
        let rules = ["all=11:12:0660", "a/all=21", "a/vf2=:32:0666", "control=:5"];
        let table = table(&rules).unwrap();
        let of = |text| {
            let access = table.of(&name(text));
            let owner = access.owner.map(Uid::as_raw);
            (owner, access.group.map(Gid::as_raw), access.mode().bits())
        };
        assert_eq!(of("b/1"), (Some(11), Some(12), 0o660));
        assert_eq!(of("a/1"), (Some(21), Some(12), 0o660));
        assert_eq!(of("a/2"), (Some(21), Some(32), 0o666));
        assert_eq!(of("control"), (None, Some(5), 0o660), "a group is let in");
        assert_eq!(of("umad"), (None, None, 0o600));
        assert!(table.shares_vfs());
    }

    #[test]
    fn only_the_owner_may_connect_if_nothing_is_said() {
        let table = table(&["control=::0660"]).unwrap();
        let access = table.of(&name("a/1"));
        assert_eq!((access.mode().bits(), access.is_shared()), (0o600, false));
        assert!(!table.shares_vfs());
        assert!(table.of(&SocketName::Control).is_shared());
    }

    #[test]
    fn a_rule_that_makes_no_sense_is_refused_with_its_reason() {
        for (rule, why) in [
            ("control", "SOCKET=OWNER:GROUP:MODE"),
            ("control=", "SOCKET=OWNER:GROUP:MODE"),
            ("control=::", "SOCKET=OWNER:GROUP:MODE"),
            ("control=1:2:0600:4", "SOCKET=OWNER:GROUP:MODE"),
            ("door=1", "\"door\""),
            ("a/x=1", "\"a/x\""),
            ("control=::0770", "\"0770\""),
            ("control=::08", "\"08\""),
            ("control=no such user", "no user"),
            ("control=:no such group", "no group"),
        ] {
            let error = table(&[rule]).unwrap_err().to_string();
            assert!(error.contains(why), "{rule}: {error}");
        }
        for text in ["control", "umad", "all", "a/b/all", "a/7"] {
            assert_eq!(name(text).to_string(), text);
        }
    }

    #[test]
    fn a_folder_can_be_searched_by_those_who_may_connect() {
        let folder = tempfile::tempdir().unwrap();
        for (mode, expected) in [(0o600, 0o700), (0o660, 0o750), (0o666, 0o755)] {
            let access = Access {
                mode: Some(Mode::from_raw_mode(mode)),
                ..Access::default()
            };
            access.apply_to_folder(folder.path()).unwrap();
            let found = std::fs::metadata(folder.path()).unwrap().mode() & 0o777;
            assert_eq!(found, expected, "{mode:o}");
        }
    }

    #[test]
    fn a_folder_of_mode_0700_is_known_to_keep_others_out() {
        let folder = tempfile::tempdir().unwrap();
        let stranger = Access {
            owner: Some(Uid::from_raw(4711)),
            group: Some(Gid::from_raw(4712)),
            mode: None,
        };
        for (mode, expected) in [(0o700, false), (0o711, true), (0o755, true)] {
            chmod(folder.path(), Mode::from_raw_mode(mode)).unwrap();
            let found = std::fs::metadata(folder.path()).unwrap();
            assert_eq!(stranger.can_search(&found), expected, "{mode:o}");
        }
    }
}
