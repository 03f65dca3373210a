#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vhca_tests::fuzz_targets::run("arp", data));
