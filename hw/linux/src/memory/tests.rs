use hca_api::HostMemory;

use super::*;
use crate::testing::occupy;

/// Memory of which a device has regions, a domain, and a large buffer.
fn mapped() -> (Memory, PdHandle, u64) {
    const LEN: usize = 8 << 20;

    let files = MappedFiles::default();
    let mut memory = Memory::new(Box::new(files.memory(LEN).unwrap()));
    let addr = memory.space().allocate(LEN).unwrap().addr;
    memory.set_host(HostMemoryOf {
        device: Arc::new(Device::fake()),
        files,
        worker: Worker::start().unwrap(),
    });
    let pd = memory.add_pd().unwrap();
    (memory, pd, addr)
}

/// Waits until the thread has done something for a domain, as a caller does that polls the file.
fn wait(memory: &mut Memory) -> PdHandle {
    loop {
        match memory.take_outcomes().as_slice() {
            [] => std::thread::yield_now(),
            [pd] => return *pd,
            several => panic!("{several:?}"),
        }
    }
}

#[test]
fn a_large_region_that_peers_reach_is_gone_once_its_deregistration_is_ok() {
    let (mut memory, pd, addr) = mapped();
    let spec = |access| MrSpec {
        pd,
        kind: MrKind::Virtual { addr, len: 5 << 20 },
        access,
        key: None,
    };
    let register = |memory: &mut Memory, access| {
        assert_eq!(memory.register(&spec(access)), Err(HcaError::Pending));
        assert_eq!(wait(memory), pd);
        memory.register(&spec(access)).unwrap()
    };
    let local = register(&mut memory, AccessFlags::LOCAL_WRITE);
    let remote = register(&mut memory, AccessFlags::REMOTE_READ);
    let reads = |memory: &Memory, lkey| {
        let len = 4;
        memory.gather(pd, &[Sge { addr, len, lkey }], &mut [0; 4])
    };
    assert!(reads(&memory, local.lkey) && reads(&memory, remote.lkey));
    let begin = occupy(&mut memory.host.as_mut().unwrap().worker);
    memory.deregister(local.handle).unwrap();
    for _ in 0..2 {
        let pending = memory.deregister(remote.handle);
        assert_eq!(pending, Err(HcaError::Pending));
        assert_eq!(memory.remove_pd(pd), Err(HcaError::InUse));
    }
    for lkey in [local.lkey, remote.lkey, LKey(remote.handle.0)] {
        assert!(!reads(&memory, lkey));
    }
    begin.send(()).unwrap();
    assert_eq!(wait(&mut memory), pd);
    memory.deregister(remote.handle).unwrap();
    let gone = memory.deregister(remote.handle);
    assert_eq!(gone, Err(HcaError::InvalidHandle));
    memory.remove_pd(pd).unwrap();
}

#[test]
fn memory_that_is_not_mapped_is_reached_by_addresses_of_the_region_and_by_no_peer() {
    let mut memory = Memory::new(Box::new(HostMemory::new()));
    let addr = memory.space().allocate(64).unwrap().addr;
    let pd = memory.add_pd().unwrap();
    let mut register = |access| {
        memory.register(&MrSpec {
            pd,
            kind: MrKind::Translated {
                addr,
                len: 64,
                iova: 0x1000,
            },
            access,
            key: None,
        })
    };
    let remote = register(AccessFlags::REMOTE_READ);
    assert_eq!(remote, Err(HcaError::Unsupported));
    let lkey = register(AccessFlags::LOCAL_WRITE).unwrap().lkey;
    let sge = |addr, len| Sge { addr, len, lkey };
    assert!(memory.scatter(pd, &[sge(0x1010, 4)], b"vhca"));
    let mut bytes = [0; 4];
    memory.read(addr + 0x10, &mut bytes).unwrap();
    assert_eq!(&bytes, b"vhca");
    assert!(!memory.gather(pd, &[sge(0x103d, 4)], &mut bytes));
    assert!(!memory.gather(pd, &[sge(0xfff, 4)], &mut bytes));
}
