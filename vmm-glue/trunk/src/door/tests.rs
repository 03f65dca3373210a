//! Names with several addresses.

use std::net::TcpListener;

use super::*;

/// Returns an address that refuses connections: that of a socket which is bound and does not listen.
fn closed() -> (socket2::Socket, SocketAddr) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

#[test]
fn the_next_address_of_a_name_is_tried_where_one_refuses() {
    // Nothing listens at the port of tcpmux; a machine without IPv6 has another error.
    let refusing: SocketAddr = "[::1]:1".parse().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let open = listener.local_addr().unwrap();
    let stream = connect_first([refusing, open].into_iter()).unwrap();
    assert_eq!(stream.peer_addr().unwrap(), open);
    let (_bound, refusing) = closed();
    let stream = connect_first([refusing, open].into_iter()).unwrap();
    assert_eq!(stream.peer_addr().unwrap(), open);
}

#[test]
fn the_error_of_the_last_address_names_it() {
    let (_bound, last) = closed();
    let (_other, first) = closed();
    let error = connect_first([first, last].into_iter()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    assert!(
        error.to_string().starts_with(&format!("{last}: ")),
        "{error}"
    );
    let none = connect_first(std::iter::empty()).unwrap_err();
    assert_eq!(none.kind(), io::ErrorKind::NotFound);
}
