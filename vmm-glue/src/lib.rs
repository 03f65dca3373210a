//! Virtual InfiniBand HCAs for any VMM.
