//! How strictly VFs' management packets are taken.

use pf_context::{Policy, Strictness};
use serde::Deserialize;

/// How a wish of a VF's, or a match in doubt, is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// By the architecture.
    Strict,
    /// As Linux's mlx4 does.
    Compat,
}

impl From<Check> for Strictness {
    fn from(check: Check) -> Self {
        match check {
            Check::Strict => Self::Strict,
            Check::Compat => Self::Compat,
        }
    }
}

/// What the operator decides for all VFs; what is not said is as [`Policy`] has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each is a field of `Policy`")]
pub struct PolicyOptions {
    pub remote_qp: Option<Check>,
    pub limited_pkeys: Option<Check>,
    pub cm_identity: Option<Check>,
    pub third_party_paths: Option<bool>,
    pub refuse_sm_key: Option<bool>,
    pub signal_reset: Option<bool>,
}

impl PolicyOptions {
    /// The policy of a PF.
    #[must_use]
    pub fn policy(&self) -> Policy {
        let default = Policy::default();
        let check = |given: Option<Check>, default| given.map_or(default, Strictness::from);
        // Every field is named: the operator can set them all.
        Policy {
            remote_qp: check(self.remote_qp, default.remote_qp),
            limited_pkeys: check(self.limited_pkeys, default.limited_pkeys),
            cm_identity: check(self.cm_identity, default.cm_identity),
            third_party_paths: self.third_party_paths.unwrap_or(default.third_party_paths),
            refuse_sm_key: self.refuse_sm_key.unwrap_or(default.refuse_sm_key),
            signal_reset: self.signal_reset.unwrap_or(default.signal_reset),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_the_default_and_all_can_be_said() {
        assert_eq!(PolicyOptions::default().policy(), Policy::default());
        let text = "remote_qp = \"compat\"\nlimited_pkeys = \"compat\"\ncm_identity = \"compat\"\n\
                    third_party_paths = true\nrefuse_sm_key = true\nsignal_reset = false\n";
        let given: PolicyOptions = toml::from_str(text).unwrap();
        let expected = Policy {
            remote_qp: Strictness::Compat,
            limited_pkeys: Strictness::Compat,
            cm_identity: Strictness::Compat,
            third_party_paths: true,
            refuse_sm_key: true,
            signal_reset: false,
        };
        assert_eq!(given.policy(), expected);
        assert!(toml::from_str::<PolicyOptions>("sm_lmc = 2\n").is_err());
    }
}
