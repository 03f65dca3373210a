//! ERF-in-pcap capture files and packet taps.
#![forbid(unsafe_code)]
