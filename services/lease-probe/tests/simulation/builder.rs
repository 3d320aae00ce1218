//! Puts histories together.

use crate::input_changes::InputChanges;
use crate::kubelet::{KubeletModel, NodeClock};
use crate::node_lifecycle_input::TimeSpan;
use crate::random::{MILLISECOND, Micros, Random, SECOND};
use crate::script::{FactSpan, History, NodeFact, NodeScript, RUN_UP, ShootScript};
use crate::timeline::{Behaviour, FOREVER, Segment, ServerTimeline};
use crate::witnesses::SecondWitness;

/// Time needed after the last event of a history, until kube-controller-manager marks the nodes and the prober sees it.
pub(crate) const AFTERMATH: Micros = 130 * SECOND;

/// The cut of a node that died long ago, and whose Machine still counts.
pub(crate) const DIED_LONG_AGO: TimeSpan = TimeSpan::from_on(RUN_UP + 30 * SECOND);

/// A history that is being written.
pub(crate) struct Builder {
    pub(crate) random: Random,
    class: &'static str,
    seed: u64,
    pub(crate) shoots: Vec<ShootScript>,
    /// `probeInterval`.
    pub(crate) interval: Micros,
    probers: Vec<TimeSpan>,
    pub(crate) second: Option<SecondWitness>,
    /// When the process of the prober is stopped.
    pub(crate) stops: Vec<TimeSpan>,
    ends: Micros,
}

/// Ways in which an API server can be away.
const OUTAGES: [Behaviour; 4] = [
    Behaviour::Refuses,
    Behaviour::Hangs,
    Behaviour::BlackHole { forgets: 0.0 },
    Behaviour::BlackHole { forgets: 0.7 },
];

impl Builder {
    /// One shoot of 4 to 14 nodes that all are well; the interval is 10 or 30 s.
    pub(crate) fn new(class: &'static str, seed: u64) -> Self {
        let mut random = Random::stream(seed, 0);
        let (interval, nodes) = (random.pick(&[10, 30, 30]) * SECOND, 4 + random.below(11));
        let mut builder = Self {
            random,
            class,
            seed,
            shoots: Vec::new(),
            interval,
            probers: vec![TimeSpan::from_on(0)],
            second: None,
            stops: vec![],
            ends: 0,
        };
        builder.add_shoot(nodes);
        builder
    }

    /// Instead of the number that was drawn.
    pub(crate) fn set_nodes(&mut self, nodes: usize) {
        self.shoots.clear();
        self.add_shoot(nodes);
    }

    pub(crate) fn add_shoot(&mut self, nodes: usize) {
        let random = &mut self.random;
        let seed = random.next();
        let late_writes = random.pick(&[0.0, 0.0, 0.5]);
        let node = |_| {
            let kubelet = KubeletModel::steady(random.next(), RUN_UP + random.between(0, 10 * SECOND));
            let mut node = NodeScript::steady(kubelet, RUN_UP);
            node.kubelet.late_writes = late_writes;
            // Time service keeps clocks of one site this close.
            let skew = random.between(-50 * MILLISECOND, 50 * MILLISECOND);
            node.kubelet.clock = NodeClock {
                steps: vec![(RUN_UP, skew)],
            };
            node
        };
        let mut nodes: Vec<_> = (0..nodes).map(node).collect();
        let enough = nodes.len() > 3;
        if let Some(dead) = nodes.first_mut().filter(|_| enough && random.chance(0.33)) {
            dead.cuts.push(DIED_LONG_AGO);
        }
        // Those of a whole control plane, that of kube-controller-manager alone, or none.
        let elections = random.pick(&[3, 3, 3, 3, 1, 0]);
        let latency = random.pick(&[2, 5, 20, 60]) * MILLISECOND;
        self.shoots.push(ShootScript {
            server: ServerTimeline {
                seed,
                latency,
                segments: vec![],
                speaks_http2: true,
                elections,
            },
            nodes,
            prober_cuts: vec![],
            external_cuts: None,
            grace: 40 * SECOND,
            absences: vec![],
            input_changes: InputChanges::default(),
        });
    }

    /// The first (mostly only) shoot.
    pub(crate) fn shoot(&mut self) -> &mut ShootScript {
        &mut self.shoots[0]
    }

    pub(crate) fn set_all_clocks_behind(&mut self, behind: Micros) {
        for node in &mut self.shoot().nodes {
            node.kubelet.clock = NodeClock {
                steps: vec![(RUN_UP, -behind)],
            };
        }
    }

    /// When something may begin: any phase of the probes and kubelets, when estimates have settled.
    pub(crate) fn some_time(&mut self) -> Micros {
        self.random.between(60 * SECOND, 100 * SECOND)
    }

    /// An API server's behaviour; the end of the segment.
    pub(crate) fn server(&mut self, from: Micros, length: Micros, behaviour: Behaviour) -> Micros {
        let to = from + length;
        self.ends = self.ends.max(to);
        self.shoot().server.segments.push(Segment { from, to, behaviour });
        to
    }

    /// The server is away in one of the ways; after it refused it may read before it may write, once in a while.
    pub(crate) fn outage(&mut self, from: Micros, length: Micros, behaviour: Behaviour) -> Micros {
        let end = self.server(from, length, behaviour);
        if behaviour == Behaviour::Refuses && self.random.chance(0.15) {
            let length = self.random.seconds(0.1, 3.0);
            self.server(end, length, Behaviour::RefusesWrites);
        }
        end
    }

    pub(crate) fn any_outage(&mut self) -> Behaviour {
        self.random.pick(&OUTAGES)
    }

    /// Cuts a share of the nodes off, at least one.
    pub(crate) fn cut(&mut self, share: f64, from: Micros, to: Micros) {
        let count = self.shoot().nodes.len();
        let mut nodes: Vec<_> = (0..count).collect();
        self.random.shuffle(&mut nodes);
        let cut = ((count as f64 * share).round() as usize).clamp(1, count);
        for node in &nodes[..cut] {
            self.shoot().nodes[*node].cuts.push(TimeSpan::new(from, to));
        }
        self.ends = self.ends.max(from);
        if to < FOREVER {
            self.ends = self.ends.max(to);
        }
    }

    /// Permanently cuts off enough nodes for a loss.
    pub(crate) fn lose(&mut self, at: Micros) {
        let share = self.random.pick(&[0.75, 0.9, 1.0, 1.0]);
        self.cut(share, at, FOREVER);
    }

    /// The same at some instant between these.
    pub(crate) fn lose_between(&mut self, from: Micros, to: Micros) {
        let at = self.random.between(from, to);
        self.lose(at);
    }

    pub(crate) fn fact(&mut self, node: usize, from: Micros, to: Micros, fact: NodeFact) {
        self.shoot().nodes[node].facts.push(FactSpan { from, to, fact });
        self.ends = self.ends.max(from);
    }

    /// One prober ends and another begins.
    pub(crate) fn hand_over(&mut self, at: Micros, after: Micros) {
        let last = self.probers.last_mut().unwrap();
        last.to = at;
        self.probers.push(TimeSpan::from_on(at + after));
        self.ends = self.ends.max(at + after);
    }

    /// The prober ends, and no other begins.
    pub(crate) fn end_prober(&mut self, at: Micros) {
        self.probers.last_mut().unwrap().to = at;
    }

    pub(crate) fn until(&mut self, at: Micros) {
        self.ends = self.ends.max(at);
    }

    pub(crate) fn build(mut self) -> History {
        let length = self.ends + AFTERMATH;
        let second = self.second.iter_mut().flat_map(|second| &mut second.probers);
        for run in self.probers.iter_mut().chain(second) {
            run.to = run.to.min(length);
        }
        History {
            class: self.class,
            seed: self.seed,
            length,
            interval: self.interval,
            probers: self.probers,
            second: self.second,
            stops: self.stops,
            shoots: self.shoots,
        }
    }
}
