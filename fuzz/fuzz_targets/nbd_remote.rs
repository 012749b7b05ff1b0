//! See `nbd_remote` in `cistern_fuzz::TARGETS`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cistern_fuzz::run("nbd_remote", data));
