use std::collections::VecDeque;

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::*;

const START: u64 = 1 << 12;
const PLACES: u16 = 4;
const MOST: u32 = 64;
const BYTES: u64 = 1 << 12;

/// Both ends of a queue, in one memory that each has mapped for itself.
struct Queue {
    memory: Memory,
    addresses: QueueAddresses,
    buffers: u64,
    sender: Box<dyn Sender>,
    receiver: Box<dyn Receiver>,
}

impl Queue {
    fn new(is_driver_sending: bool) -> Self {
        let (addresses, end) = QueueAddresses::from(START, PLACES);
        let buffers = Buffers {
            start: end,
            size: MOST,
        };
        let file = memory::create(BYTES).unwrap();
        let [memory, other] =
            [file.try_clone().unwrap(), file].map(|file| memory::map(file, START, BYTES).unwrap());
        let (sender, receiver): (Box<dyn Sender>, Box<dyn Receiver>) = match is_driver_sending {
            true => (
                Box::new(DriverSender::new(memory.clone(), addresses, buffers)),
                Box::new(DeviceReceiver::new(other, addresses, MOST).unwrap()),
            ),
            false => (
                Box::new(DeviceSender::new(other, addresses, MOST).unwrap()),
                Box::new(DriverReceiver::new(memory.clone(), addresses, buffers).unwrap()),
            ),
        };
        Self {
            memory,
            addresses,
            buffers: end,
            sender,
            receiver,
        }
    }

    /// Writes a number as a hostile end does.
    fn write(&self, address: GuestAddress, number: u16) {
        self.memory
            .write_slice(&number.to_le_bytes(), address)
            .unwrap();
    }

    /// Makes chain 0 available, whose descriptors have these addresses, lengths, flags and followers.
    fn make_available(&self, descriptors: &[(u64, u32, u16, u16)]) {
        for (number, (address, length, flags, next)) in (0..).zip(descriptors) {
            let parts = [
                &address.to_le_bytes()[..],
                &length.to_le_bytes(),
                &flags.to_le_bytes(),
                &next.to_le_bytes(),
            ];
            let place = self.addresses.descriptor(number);
            self.memory.write_slice(&parts.concat(), place).unwrap();
        }
        self.write(self.addresses.available_element(0), 0);
        self.write(self.addresses.available_index(), 1);
    }
}

/// Sends bytes as a chunk, in two pieces.
fn send(queue: &mut Queue, bytes: &[u8]) -> Result<(), RingError> {
    let (front, behind) = bytes.split_at(bytes.len() / 3);
    queue.sender.write(&mut |chunk| {
        chunk.append(front);
        chunk.append(behind);
        assert!(chunk.written() <= bytes.len());
    })
}

#[test]
fn descriptors_and_rings_lie_where_virtio_has_them() {
    let (addresses, end) = QueueAddresses::from(4100, 8);
    assert_eq!(addresses.descriptors, 4160);
    assert_eq!(addresses.descriptor(3).0, 4160 + 3 * 16);
    // 8 descriptors, then flags, index, 8 entries and an event.
    assert_eq!(addresses.available, 4160 + 128);
    assert_eq!(addresses.available_element(9).0, 4288 + 4 + 2);
    assert_eq!(addresses.used_event().0, 4288 + 4 + 16);
    assert_eq!(addresses.used, 4288 + 64);
    assert_eq!(addresses.used_element(9).0, 4352 + 4 + 8);
    assert_eq!(addresses.available_event().0, 4352 + 4 + 64);
    assert_eq!(end, 4352 + 128);
}

#[test]
fn a_full_queue_has_room_again_once_a_chunk_was_received_and_its_sender_is_notified() {
    for is_driver_sending in [true, false] {
        let mut queue = Queue::new(is_driver_sending);
        for number in 0..4 {
            assert!(queue.sender.has_room().unwrap());
            send(&mut queue, &[number; 7]).unwrap();
        }
        assert!(!queue.sender.has_room().unwrap());
        assert!(!queue.sender.await_room().unwrap());
        assert_eq!(queue.receiver.waiting().unwrap(), 4);
        // Whatever was due for the buffers that were lent first.
        queue.receiver.must_notify().unwrap();
        let mut chunk = vec![9; 20];
        assert!(queue.receiver.receive(&mut chunk).unwrap());
        assert_eq!(chunk, [0; 7]);
        assert!(queue.receiver.must_notify().unwrap());
        assert!(!queue.receiver.must_notify().unwrap());
        assert!(queue.sender.has_room().unwrap());
        assert!(queue.sender.await_room().unwrap() | is_driver_sending);
    }
}

#[test]
fn a_chunk_to_which_nothing_is_written_takes_no_room() {
    for is_driver_sending in [true, false] {
        let mut queue = Queue::new(is_driver_sending);
        for _ in 0..2 * PLACES {
            assert!(queue.sender.has_room().unwrap());
            queue.sender.write(&mut |_| {}).unwrap();
        }
        assert_eq!(queue.receiver.waiting().unwrap(), 0);
        send(&mut queue, &[5; 9]).unwrap();
        let mut chunk = Vec::new();
        assert!(queue.receiver.receive(&mut chunk).unwrap());
        assert_eq!(chunk, [5; 9]);
    }
}

#[test]
fn a_chunk_of_several_descriptors_is_gathered() {
    let mut queue = Queue::new(true);
    queue
        .memory
        .write_slice(b"abcdef", GuestAddress(queue.buffers))
        .unwrap();
    let (next, none) = (1, 0);
    queue.make_available(&[
        (queue.buffers + 4, 2, next, 2),
        (0, 0, none, 0),
        (queue.buffers, 3, none, 0),
    ]);
    let mut chunk = Vec::new();
    assert!(queue.receiver.receive(&mut chunk).unwrap());
    assert_eq!(chunk, b"efabc");
    assert!(!queue.receiver.receive(&mut chunk).unwrap());
}

#[test]
fn chains_that_no_honest_driver_makes_end_a_device() {
    let (next, write, indirect) = (1, 2, 4);
    let error = |is_driver_sending: bool, make: &dyn Fn(&Queue)| {
        let mut queue = Queue::new(is_driver_sending);
        make(&queue);
        let received = match is_driver_sending {
            true => queue.receiver.receive(&mut Vec::new()).map(drop),
            false => send(&mut queue, &[1; 8]),
        };
        received.unwrap_err().to_string()
    };
    let inside = Queue::new(true).buffers;
    let chain = |descriptors: &[(u64, u32, u16, u16)]| {
        error(true, &|queue| queue.make_available(descriptors))
    };
    for (words, descriptors) in [
        ("too long", &[(inside, MOST + 1, 0, 0)][..]),
        ("too long", &[(inside, MOST, next, 1), (inside, 1, 0, 0)]),
        ("empty", &[(inside, 0, 0, 0)]),
        ("wrong direction", &[(inside, 8, write, 0)]),
        ("too many", &[(inside, 1, next, 0)]),
        ("cut short", &[(inside, 1, next, PLACES)]),
        ("cut short", &[(inside, 7, indirect, 0)]),
        ("cut short", &[(1, 16, indirect, 0)]),
        ("outside", &[(START + BYTES - 1, 2, 0, 0)]),
        ("outside", &[(u64::MAX, 2, 0, 0)]),
    ] {
        let error = chain(descriptors);
        assert!(error.contains(words), "{words}: {error}");
    }
    let ahead = error(true, &|queue| {
        queue.write(queue.addresses.available_index(), PLACES + 1)
    });
    assert!(ahead.contains("index"), "{ahead}");
    let head = error(true, &|queue| {
        queue.write(queue.addresses.available_element(0), PLACES);
        queue.write(queue.addresses.available_index(), 1);
    });
    assert!(head.contains("cut short"), "{head}");
    for (words, descriptor) in [
        ("too short", (inside, 7, write, 0)),
        ("wrong direction", (inside, 8, 0, 0)),
        ("outside", (START + BYTES - 1, 8, write, 0)),
    ] {
        let error = error(false, &|queue| queue.make_available(&[descriptor]));
        assert!(error.contains(words), "{words}: {error}");
    }
}

#[test]
fn entries_that_no_honest_device_returns_end_a_driver() {
    let answer = |id: u32, length: u32, index: u16| {
        let mut queue = Queue::new(false);
        let entry = [id.to_le_bytes(), length.to_le_bytes()].concat();
        let place = queue.addresses.used_element(0);
        queue.memory.write_slice(&entry, place).unwrap();
        queue.write(queue.addresses.used_index(), index);
        let mut chunk = Vec::new();
        queue.receiver.receive(&mut chunk)?;
        queue.receiver.receive(&mut chunk)
    };
    assert!(matches!(answer(0, 1, PLACES + 1), Err(RingError::Index(5))));
    assert!(matches!(answer(4, 1, 1), Err(RingError::Descriptor(4))));
    assert!(matches!(
        answer(u32::MAX, 1, 1),
        Err(RingError::Descriptor(_))
    ));
    assert!(matches!(answer(0, MOST + 1, 1), Err(RingError::Length(65))));
    assert!(matches!(answer(0, 0, 1), Err(RingError::Length(0))));
    assert!(matches!(answer(0, 1, 1), Ok(false)));
    // A descriptor that comes back twice is the device's once.
    let mut queue = Queue::new(true);
    send(&mut queue, &[1]).unwrap();
    send(&mut queue, &[2]).unwrap();
    queue.write(queue.addresses.used_index(), 2);
    assert!(matches!(
        queue.sender.has_room(),
        Err(RingError::Descriptor(0))
    ));
}

#[derive(Clone, Debug)]
enum Step {
    Send(u8),
    Receive,
    AwaitRoom,
    AwaitChunk,
    /// A hostile end writes a word somewhere.
    Write(u64, u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..=64_u8).prop_map(Step::Send),
        4 => Just(Step::Receive),
        1 => Just(Step::AwaitRoom),
        1 => Just(Step::AwaitChunk),
    ]
}

fn hostile_step() -> impl Strategy<Value = Step> {
    let near = prop_oneof![0..600_u64, 0..BYTES - 1];
    prop_oneof![
        2 => step(),
        1 => (near, prop_oneof![0..8_u16, any::<u16>()]).prop_map(|(at, word)| Step::Write(START + at, word)),
    ]
}

proptest! {
    #[test]
    fn chunks_come_as_they_were_sent_and_an_end_that_waits_is_notified(
        is_driver_sending: bool,
        steps in proptest::collection::vec(step(), 0..400),
    ) {
        let mut queue = Queue::new(is_driver_sending);
        queue.receiver.must_notify().unwrap();
        let mut model = VecDeque::new();
        // The first chunk and the first room are notified unasked.
        let (mut awaits_chunk, mut awaits_room) = (false, false);
        let (mut chunk, mut count) = (Vec::new(), 0_u8);
        for step in steps {
            match step {
                Step::Send(length) => {
                    let has_room = queue.sender.has_room().unwrap();
                    prop_assert!(has_room || model.len() == 4);
                    if has_room {
                        count = count.wrapping_add(1);
                        let sent = vec![count; usize::from(length)];
                        send(&mut queue, &sent).unwrap();
                        model.push_back(sent);
                        prop_assert!(queue.sender.must_notify().unwrap() || !awaits_chunk);
                        (awaits_chunk, awaits_room) = (false, false);
                    }
                }
                Step::Receive => {
                    prop_assert_eq!(usize::from(queue.receiver.waiting().unwrap()), model.len());
                    let received = queue.receiver.receive(&mut chunk).unwrap();
                    let taken = received.then(|| chunk.clone());
                    prop_assert_eq!(taken, model.pop_front());
                    if received {
                        prop_assert!(queue.receiver.must_notify().unwrap() || !awaits_room);
                        (awaits_chunk, awaits_room) = (false, false);
                    }
                }
                Step::AwaitChunk => {
                    let waits = queue.receiver.await_chunk().unwrap();
                    prop_assert_eq!(waits, !model.is_empty());
                    awaits_chunk = !waits;
                }
                Step::AwaitRoom => {
                    // A driver may have to take back what came before it is asked.
                    let has_room = queue.sender.has_room().unwrap();
                    awaits_room = !queue.sender.await_room().unwrap() && !has_room;
                }
                Step::Write(..) => {}
            }
        }
    }

    #[test]
    fn no_words_in_the_memory_make_an_end_panic_or_work_without_end(
        is_driver_sending: bool,
        steps in proptest::collection::vec(hostile_step(), 0..200),
    ) {
        let mut queue = Queue::new(is_driver_sending);
        let mut chunk = Vec::new();
        for step in steps {
            // Ends are used on after errors, which no carrier does.
            let _ = match step {
                Step::Send(length) => queue.sender.has_room().and_then(|has_room| match has_room {
                    true => send(&mut queue, &vec![1; usize::from(length)]),
                    false => Ok(()),
                }),
                Step::Receive => queue.receiver.receive(&mut chunk).map(drop),
                Step::AwaitRoom => queue.sender.await_room().map(drop),
                Step::AwaitChunk => queue.receiver.await_chunk().map(drop),
                Step::Write(address, word) => {
                    queue.write(GuestAddress(address), word);
                    Ok(())
                }
            };
            prop_assert!(chunk.len() <= 64);
            let _ = queue.sender.must_notify();
            let _ = queue.receiver.must_notify();
        }
    }
}
