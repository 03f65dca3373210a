//! Memory that a program can register, and memory that it cannot.

use std::fs;

use vhca_tests::live::Shim;

use crate::lab;

#[test]
fn memory_is_registered_if_it_is_there_with_the_rights_of_the_region() {
    let lab = lab();
    let script = lab.dir().join("regions.py");
    fs::write(&script, include_str!("regions.py")).unwrap();
    let program = ["/usr/bin/python3", script.to_str().unwrap(), "vhca1"];
    let outcomes = lab.tool(Shim::Vhca, "H1-1/1", &program);
    let wanted = "\
plain memory: ok
memory of odd bounds: ok
unmapped: EFAULT
half mapped: EFAULT
the half that is mapped: ok
without rights: EFAULT
read-only file, to be read: ok
read-only file, to be written: EFAULT
read-only file, to be written remotely: EFAULT
one page of three read-only: EFAULT
the same after mprotect: ok
sparse: ok
pages of sparse: 0
on demand: ENOTSUP
beyond all addresses: EFAULT
";
    assert_eq!(outcomes, wanted);
}
