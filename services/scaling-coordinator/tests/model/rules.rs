//! The guarantees of the surroundings of the domain code, and the number of faults in one search.

/// The rules; all hold unless a test switches one off.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// The levels of the two resources, up and down.
    pub levels: [(i32, i32); 2],
    /// The kinds have only a scale sub-resource, which takes two steps down.
    pub in_two_steps: bool,
    /// The replicas are recorded before anything is scaled down, or with it.
    pub record: bool,
    /// The code gets the levels that must be kept; otherwise it gets the same level for all resources.
    pub order: bool,
    /// The API server is asked for the Cluster right before a write.
    pub cluster: bool,
    /// A shoot that hibernates, migrates or is deleted is released.
    pub release: bool,
    /// The validity of a verdict counts.
    pub validity: bool,
    /// The code receives the verdicts of all observers; otherwise those of one only.
    pub observers: bool,
    /// A write is applied only to the version that it was decided on.
    pub precondition: bool,
    /// A handover waits for the writes under way of the replica before.
    pub permit: bool,
    /// At most one replica acts.
    pub exclusive: bool,
    /// A level starts on what was just read; otherwise on what the watches have shown.
    pub reads: bool,
    /// Knowledge from before another replica led counts no longer.
    pub anew: bool,
    /// S3 and S5 are judged; not where a search breaks them on purpose and looks at the counts alone.
    pub judged: bool,
    /// Right before a write its direction is checked again.
    pub checked: bool,
    /// The list of this resource is refused; none if all are listed.
    pub unlisted: Option<usize>,
    /// A read of a resource that is not listed counts for one loss of one leader.
    pub forgets: bool,
    /// The protected state is in the API server; otherwise a crash loses the recorded counts.
    pub durable: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            levels: [(0, 1), (1, 0)],
            in_two_steps: false,
            record: true,
            order: true,
            cluster: true,
            release: true,
            validity: true,
            observers: true,
            precondition: true,
            permit: true,
            exclusive: true,
            reads: true,
            anew: true,
            judged: true,
            checked: true,
            unlisted: None,
            forgets: true,
            durable: true,
        }
    }
}

/// How often each kind of event may happen on one path; never, by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Changes of what the observers say.
    pub turns: u8,
    /// True if observers send every possible verdict; otherwise one of each kind.
    pub all_verdicts: bool,
    /// Writes refused, lost before or after they were applied, or applied late.
    pub losses: u8,
    /// Deaths of the acting process.
    pub crashes: u8,
    /// Writes of somebody else.
    pub meddles: u8,
    /// Hibernations or deletions.
    pub stops: u8,
    /// Ends of that.
    pub resumes: u8,
    /// Handovers between living replicas.
    pub moves: u8,
    /// Ends of a refusal to list a resource, for one replica.
    pub lists: u8,
    /// Jumps in time to the next thing that somebody waits for.
    pub jumps: u8,
}

impl Rules {
    /// True for the objects that a new process lists.
    pub fn listed(self) -> [bool; 2] {
        [0, 1].map(|i| self.unlisted != Some(i))
    }
}

impl Budget {
    pub fn of(allow: fn(&mut Self)) -> Self {
        let mut budget = Self::default();
        allow(&mut budget);
        budget
    }
}
