//! Questions of a program that has not opened the device, and the datagrams in which its library asks.

use linux_abi::sysfs::View;
use verbs_link::{
    CallReply, Command, DeviceView, MAX_NAMESPACE_ADDRESSES, Namespace, Request, netlink, sysfs,
};

use super::program::Program;

/// Bytes of a netlink datagram at most, as programs have room for.
const MOST: usize = 32 << 10;

/// Reads the input as each kind of question. Answers are bounded, and a request that can be read is written as it was.
pub(in super::super) fn verbs_questions(data: &[u8]) {
    let mut program = Program::new();
    let device = program.with(|_, hca| DeviceView::of(hca, "rxe0".into(), 0, "fuzz".into()));
    for known in [None, Some(&device)] {
        for datagram in netlink::answer(known, data) {
            assert!(datagram.len() <= MOST, "{} bytes", datagram.len());
        }
        if let Ok(path) = core::str::from_utf8(data) {
            let view = View {
                devices: known.map(sysfs::device).into_iter().collect(),
                has_verbs: true,
            };
            let text = view.text(path);
            assert!(text.is_none_or(|text| text.len() <= 4096 && text.ends_with('\n')));
        }
    }
    if let Ok(request) = Request::decode(data) {
        let bytes = [&request.header()[..], request.body].concat();
        assert_eq!(Request::decode(&bytes), Ok(request));
    }
    if let Ok(reply) = CallReply::decode(data) {
        let again = CallReply::decode(&reply.encode());
        assert!(again.is_ok_and(|again| again.body == reply.body));
    }
    let namespace = Namespace::decode(data);
    assert!(namespace.addresses.len() <= MAX_NAMESPACE_ADDRESSES);
    assert_eq!(Namespace::decode(&namespace.encode()), namespace);
    if let Ok(command) = Command::decode(data) {
        let (_, room) = command.place_of_answer();
        assert!(room <= 2 * 8 * usize::from(u16::MAX));
    }
}
