//! The executor keeps its word: one seed one history, the dead stay dead, time only moves on.

use super::*;

fn chatter(sim: &Sim) -> Outcome {
    let world = sim.clone();
    sim.run(async move {
        let mut ends = Vec::new();
        for n in 0..20u64 {
            let (sim, inc) = (world.clone(), world.incarnate());
            ends.push(world.start(inc, "talker", async move {
                for i in 0..10 {
                    sim.dawdle().await;
                    sim.note(format_args!("{n} says {i}"));
                }
            }));
        }
        for end in ends {
            end.await.expect("nobody kills them");
        }
    })
}

/// One seed gives one history, another seed another one.
#[test]
fn the_seed_decides() {
    let histories: Vec<u64> = [7, 7, 8].iter().map(|&s| chatter(&Sim::new(s, false)).history).collect();
    assert_eq!(histories[0], histories[1]);
    assert_ne!(histories[0], histories[2]);
}

/// A killed incarnation does nothing more, and whoever waits for it learns so.
#[test]
fn the_dead_do_nothing() {
    let sim = Sim::new(1, false);
    let world = sim.clone();
    let ending = sim.run(async move {
        let inc = world.incarnate();
        let inner = world.clone();
        let end = world.start(inc, "victim", async move {
            inner.sleep(Duration::from_secs(5)).await;
            inner.fail("polled after death");
        });
        let killer = world.clone();
        world.burn_after(inc, 1, move || killer.kill(inc, || ()));
        let again = world.on(inc, "bait", async {}).await;
        assert!(end.await.is_err());
        assert!(again.is_none() || !world.is_alive(inc));
        world.sleep(Duration::from_secs(10)).await;
    });
    assert_eq!(ending.failure, None);
}

/// A suspended incarnation sleeps through its timers and goes on when it is resumed.
#[test]
fn the_suspended_wake_late() {
    let sim = Sim::new(2, false);
    let world = sim.clone();
    let ending = sim.run(async move {
        let inc = world.incarnate();
        let inner = world.clone();
        let woke = world.start(inc, "sleeper", async move {
            inner.sleep(Duration::from_secs(1)).await;
            inner.now()
        });
        let begin = world.now();
        world.suspend(inc, true);
        world.sleep(Duration::from_secs(86400)).await;
        world.suspend(inc, false);
        let at = woke.await.expect("it lives");
        assert!(at >= begin + Duration::from_secs(86400));
    });
    assert_eq!(ending.failure, None);
}

/// A script that waits for what never comes is reported, and so is a panic.
#[test]
fn hangs_and_panics_are_failures() {
    let ending = Sim::new(3, false).run(std::future::pending());
    assert!(ending.failure.expect("a failure").contains("hang"));
    let ending = Sim::new(3, false).run(async { panic!("as told") });
    assert!(ending.failure.expect("a failure").contains("as told"));
}

/// So is a panic of a destructor, where the life of its task ends and where the run does.
#[test]
fn panics_of_destructors_are_failures() {
    struct Falls;
    impl Drop for Falls {
        fn drop(&mut self) {
            panic!("while it falls");
        }
    }
    let holds = async || {
        let _falls = Falls;
        std::future::pending::<()>().await;
    };
    let sim = Sim::new(3, false);
    let ending = sim.clone().run(async move {
        let inc = sim.incarnate();
        let _held = sim.start(inc, "holds", holds());
        sim.sleep(Duration::from_secs(1)).await;
        sim.kill(inc, || {});
    });
    assert!(ending.failure.expect("a failure").contains("while it falls"));
    let sim = Sim::new(3, false);
    let ending = sim.clone().run(async move {
        let inc = sim.incarnate();
        let _held = sim.start(inc, "holds", holds());
        sim.sleep(Duration::from_secs(1)).await;
    });
    assert!(ending.failure.expect("a failure").contains("while it falls"));
}
