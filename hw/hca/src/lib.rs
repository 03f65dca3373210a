//! The HCA as software sees it: the verbs-provider interface.
#![forbid(unsafe_code)]
