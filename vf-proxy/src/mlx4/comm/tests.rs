use proptest::prelude::*;

use super::*;

const TOGGLE: u32 = 1 << 31;
const INTERNAL_ERROR: u32 = 1 << 17;
const OFFLINE: u32 = 1 << 9;
const RESET_REQUEST: u32 = 1 << 16;
const RESET_ACK: u32 = 1 << 8;

/// Writes bytes as the driver does, and resets at once if asked to.
fn post(channel: &mut CommChannel, word: [u8; 4]) -> CommAction {
    let action = channel.write(SLAVE_WRITE, u32::from_be_bytes(word));
    if action == CommAction::Reset {
        channel.reset_done();
    }
    action
}

fn slave_read(channel: &CommChannel) -> [u8; 4] {
    channel.read(SLAVE_READ).unwrap().to_be_bytes()
}

fn active() -> CommChannel {
    let mut channel = CommChannel::default();
    let words = [
        [0x80, 0, 0, 0],
        [0x00, 0x01, 0x00, 0x00],
        [0x80, 0x02, 0x00, 0x01],
        [0x00, 0x03, 0x23, 0x45],
        [0x80, 0x04, 0x60, 0x00],
    ];
    for word in words {
        post(&mut channel, word);
    }
    channel
}

#[test]
fn a_probe_is_answered_byte_for_byte() {
    let mut channel = CommChannel::default();
    assert_eq!(channel.read(SLAVE_WRITE), Some(0));
    assert_eq!(slave_read(&channel), [0, 0x02, 0, 0], "toggles in step");
    assert_eq!(channel.read(FLAGS), Some(0));
    assert_eq!(channel.read(CAPS), Some(0x4000_0000));
    assert_eq!(post(&mut channel, [0x80, 0, 0, 0]), CommAction::Reset);
    assert_eq!(slave_read(&channel), [0x80, 0, 0x01, 0x01]);
    let exchanges = [
        ([0x00, 0x01, 0x00, 0x00], [0, 0, 0, 0]),
        ([0x80, 0x02, 0x00, 0x01], [0x80, 0, 0, 0]),
        ([0x00, 0x03, 0x23, 0x45], [0, 0, 0, 0]),
        ([0x80, 0x04, 0x60, 0x00], [0x80, 0, 0, 0]),
    ];
    for (word, answer) in exchanges {
        assert_eq!(post(&mut channel, word), CommAction::None);
        assert_eq!(slave_read(&channel), answer);
    }
    let vhcr = 0x0001_2345_6000;
    assert_eq!(
        post(&mut channel, [0x00, 0x05, 0, 0]),
        CommAction::Execute { vhcr }
    );
    assert_eq!(slave_read(&channel), [0x80, 0, 0, 0], "not done yet");
    channel.complete();
    assert_eq!(slave_read(&channel), [0, 0, 0, 0]);
    assert_eq!(
        post(&mut channel, [0x80, 0x05, 0, 0]),
        CommAction::Execute { vhcr }
    );
}

#[test]
fn all_four_parts_of_the_address_count() {
    let mut channel = CommChannel::default();
    let words = [
        [0x80, 0, 0, 0],
        [0x00, 0x01, 0x12, 0x34],
        [0x80, 0x02, 0x56, 0x78],
        [0x00, 0x03, 0x9a, 0xbc],
        [0x80, 0x04, 0xd0, 0x00],
    ];
    for word in words {
        post(&mut channel, word);
    }
    assert_eq!(
        post(&mut channel, [0x00, 0x05, 0, 0]),
        CommAction::Execute {
            vhcr: 0x1234_5678_9abc_d000
        }
    );
}

#[test]
fn the_devices_word_cannot_be_written_but_to_zero() {
    let mut channel = active();
    let before = slave_read(&channel);
    assert_eq!(channel.write(SLAVE_READ, 0x1234_5678), CommAction::None);
    assert_eq!(slave_read(&channel), before);
}

#[test]
fn a_device_that_fails_before_its_driver_made_anything_tells_nobody() {
    let mut channel = CommChannel::default();
    post(&mut channel, [0x80, 0, 0, 0]);
    let before = slave_read(&channel);
    channel.device_failed();
    assert_eq!(slave_read(&channel), before);
}

#[test]
fn a_post_before_the_address_is_complete_resets_and_tells_an_internal_error() {
    let mut channel = CommChannel::default();
    post(&mut channel, [0x80, 0, 0, 0]);
    assert_eq!(post(&mut channel, [0, 0x05, 0, 0]), CommAction::Reset);
    assert_eq!(slave_read(&channel), [0, 0x02, 0, 0]);
}

#[test]
fn parts_of_the_address_out_of_order_reset_the_function() {
    let mut channel = CommChannel::default();
    assert_eq!(post(&mut channel, [0x80, 0x01, 0, 0]), CommAction::None);
    assert_eq!(post(&mut channel, [0, 0x03, 0, 0]), CommAction::Reset);
    assert_eq!(slave_read(&channel), [0, 0x02, 0, 0]);
    assert_eq!(post(&mut channel, [0x80, 0xfe, 0, 0]), CommAction::Reset);
    assert_eq!(slave_read(&channel), [0x80, 0x02, 0, 0]);
}

#[test]
fn a_vhcr_that_is_not_memory_is_an_internal_error() {
    let mut channel = active();
    post(&mut channel, [0, 0x05, 0, 0]);
    assert_eq!(channel.fail(), CommAction::Reset);
    channel.reset_done();
    assert_eq!(slave_read(&channel), [0, 0x02, 0, 0]);
    assert_eq!(
        post(&mut channel, [0x80, 0x05, 0, 0]),
        CommAction::Reset,
        "the address is forgotten"
    );
}

#[test]
fn a_reset_request_is_acknowledged_when_the_reset_is_done() {
    let mut channel = active();
    assert_eq!(channel.write(FLAGS, RESET_REQUEST), CommAction::Reset);
    assert_eq!(channel.read(FLAGS), Some(RESET_REQUEST));
    channel.reset_done();
    assert_eq!(channel.read(FLAGS), Some(RESET_REQUEST | RESET_ACK));
    assert_eq!(channel.read(SLAVE_WRITE), Some(0));
    assert_eq!(channel.read(SLAVE_READ), Some(0));
    assert_eq!(channel.write(FLAGS, 0), CommAction::Reset);
    channel.reset_done();
    assert_eq!(channel.read(FLAGS), Some(0));
}

#[test]
fn a_driver_that_did_not_ask_for_a_reset_is_told_of_an_internal_error() {
    let mut channel = active();
    channel.reset_done();
    assert_eq!(slave_read(&channel), [0x80, 0x02, 0, 0]);
    channel.write(FLAGS, RESET_REQUEST);
    channel.reset_done();
    assert_eq!(slave_read(&channel), [0; 4]);
}

#[test]
fn a_driver_that_waits_for_a_reset_hears_of_no_failure() {
    let mut channel = active();
    let before = slave_read(&channel);
    channel.write(FLAGS, RESET_REQUEST);
    channel.device_failed();
    assert_eq!(slave_read(&channel), before);
    channel.reset_done();
    assert_eq!(slave_read(&channel), [0; 4]);
    assert_eq!(channel.read(FLAGS), Some(RESET_REQUEST | RESET_ACK));
}

#[test]
fn a_driver_that_was_there_before_a_machine_reset_reads_an_internal_error_until_it_resets_the_function()
 {
    // Restored with the toggle up or down, and idle or with a command that it is about to post.
    for toggle in [0x00, 0x80] {
        for posts in [false, true] {
            let mut channel = active();
            assert!(channel.is_active());
            channel.machine_reset();
            channel.reset_done();
            assert_eq!(slave_read(&channel), [0, 0x02, 0, 0]);
            if posts {
                post(&mut channel, [toggle, 0x05, 0, 0]);
                assert_eq!(slave_read(&channel), [toggle, 0x02, 0, 0]);
            }
            assert!(!channel.is_active());
            assert_eq!(channel.write(FLAGS, RESET_REQUEST), CommAction::Reset);
            channel.reset_done();
            assert_eq!(channel.read(FLAGS), Some(RESET_REQUEST | RESET_ACK));
            assert_eq!(slave_read(&channel), [0; 4]);
            assert_eq!(post(&mut channel, [0x80, 0, 0, 0]), CommAction::Reset);
            assert_eq!(slave_read(&channel), [0x80, 0, 0x01, 0x01]);
        }
    }
}

#[test]
fn a_reset_by_the_pf_before_a_driver_came_changes_nothing() {
    let mut channel = CommChannel::default();
    channel.reset_done();
    assert_eq!(slave_read(&channel), [0, 0x02, 0, 0]);
    assert_eq!(post(&mut channel, [0x80, 0, 0, 0]), CommAction::Reset);
    assert_eq!(slave_read(&channel), [0x80, 0, 0x01, 0x01]);
}

#[test]
fn the_channel_is_offline_while_a_machine_reset_is_under_way() {
    let mut channel = active();
    assert_eq!(channel.machine_reset(), CommAction::Reset);
    assert_eq!(channel.read(FLAGS), Some(OFFLINE));
    assert_eq!(channel.read(SLAVE_WRITE), Some(0));
    assert_eq!(slave_read(&channel)[0], 0, "toggles in step");
    assert_eq!(
        channel.write(SLAVE_WRITE, TOGGLE),
        CommAction::None,
        "one reset is enough"
    );
    channel.reset_done();
    assert_eq!(slave_read(&channel), [0x80, 0, 1, 1]);
    assert_eq!(channel.read(FLAGS), Some(0));
}

#[test]
fn words_that_a_driver_zeroes_are_in_step_and_no_command() {
    let mut channel = CommChannel::default();
    post(&mut channel, [0x80, 0, 0, 0]);
    assert_eq!(channel.write(SLAVE_READ, 0), CommAction::None);
    assert_eq!(channel.write(SLAVE_WRITE, 0), CommAction::None);
    assert_eq!(slave_read(&channel), [0; 4]);
}

/// The same rules told differently: the whole history of accepted commands decides.
#[derive(Debug, Default)]
struct Model {
    history: Vec<u8>,
    parameters: Vec<u16>,
    toggle: bool,
    failed: bool,
}

impl Model {
    fn post(&mut self, toggle: bool, command: u8, parameter: u16) -> Option<u64> {
        if toggle == self.toggle {
            return None;
        }
        self.toggle = toggle;
        self.failed = false;
        let legal = match command {
            0 => {
                self.parameters.clear();
                true
            }
            1 => matches!(self.history.last(), None | Some(0)),
            2..=4 => self.history.last() == Some(&(command - 1)),
            5 => matches!(self.history.last(), Some(4 | 5)),
            _ => false,
        };
        if !legal {
            self.history = vec![0];
            self.parameters.clear();
            self.failed = true;
            return None;
        }
        self.history.push(command);
        if let 1..=4 = command {
            self.parameters.push(parameter);
        }
        let address = self.parameters.iter();
        (command == 5).then(|| address.fold(0, |a, part| a << 16 | u64::from(*part)))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_sequence_of_posts_is_answered_as_the_model_says(
        posts in proptest::collection::vec((any::<bool>(), 0..7_u8, any::<u16>()), 0..60)
    ) {
        let mut channel = CommChannel::default();
        let mut model = Model {
            failed: true,
            ..Model::default()
        };
        for (toggle, command, parameter) in posts {
            let word = u32::from(toggle) << 31 | u32::from(command) << 16 | u32::from(parameter);
            let new = toggle != model.toggle;
            let expected = model.post(toggle, command, parameter);
            let action = channel.write(SLAVE_WRITE, word);
            match action {
                CommAction::Execute { vhcr } => {
                    prop_assert_eq!(Some(vhcr), expected);
                    channel.complete();
                }
                CommAction::Reset => {
                    prop_assert!(model.failed || command == 0);
                    channel.reset_done();
                }
                CommAction::None => prop_assert_eq!(None, expected),
            }
            let answer = channel.read(SLAVE_READ).unwrap();
            prop_assert_eq!(answer & TOGGLE != 0, model.toggle);
            prop_assert_eq!(answer & INTERNAL_ERROR != 0, model.failed);
            if new && command == 0 {
                prop_assert_eq!(answer & !TOGGLE, 0x0101);
            }
        }
    }
}
