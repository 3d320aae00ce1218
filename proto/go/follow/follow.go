// Package follow follows the streams of shoots, WatchVerdicts and WatchScaling, for as long as a program runs.
//
// It gives up a stream that is silent and opens the next one with jittered back-off. The end of a stream never means
// that an item was removed. Times are local and monotonic, so the clocks of the servers do not matter.
package follow

import (
	"context"
	"errors"
	"math/rand"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	probev1 "github.com/gardener/dependency-watchdog/proto/go/probe/v1"
	scalingv1 "github.com/gardener/dependency-watchdog/proto/go/scaling/v1"
	streamv1 "github.com/gardener/dependency-watchdog/proto/go/stream/v1"
)

const (
	// SilenceLimit is the time without a message after which a stream is dead: three heartbeats.
	SilenceLimit = 15 * time.Second
	// LongestValidity bounds the validity of a verdict: an older one no longer describes the shoot.
	LongestValidity = 10 * time.Minute

	minPause, maxPause = 50 * time.Millisecond, 5 * time.Second
)

// ErrSilent is the reason why a stream without messages was given up.
var ErrSilent = errors.New("no message for " + SilenceLimit.String())

// A Handler receives the items of a stream, in order and from one goroutine. Its methods must not block.
type Handler[V any] interface {
	// Set receives the item of a shoot and when it was sent. It is not changed if this version of it is known from an
	// earlier stream of the same server. Then only its times are newer.
	Set(item V, sent time.Time, changed bool)
	// Remove is called for a shoot that no longer exists.
	Remove(shoot string)
	// Complete is called after each snapshot and for every heartbeat that says which replicas are missing. While one
	// is, shoots may be absent or out of date.
	Complete(completeness *streamv1.Completeness)
	// Lost is called with the reason when a stream ends. Nothing is renewed until Complete is called again.
	Lost(err error)
}

// Verdicts follows the verdicts that request asks for until ctx is done, and returns its error.
func Verdicts(ctx context.Context, client probev1.LeaseProbeServiceClient, request *probev1.WatchVerdictsRequest,
	handler Handler[*probev1.Verdict]) error {
	return run(ctx, func(ctx context.Context) (stream[*probev1.WatchVerdictsResponse], error) {
		return client.WatchVerdicts(ctx, request)
	}, handler)
}

// Scaling follows the scaling states that request asks for until ctx is done, and returns its error.
func Scaling(ctx context.Context, client scalingv1.ScalingServiceClient, request *scalingv1.WatchScalingRequest,
	handler Handler[*scalingv1.ShootScaling]) error {
	return run(ctx, func(ctx context.Context) (stream[*scalingv1.WatchScalingResponse], error) {
		return client.WatchScaling(ctx, request)
	}, handler)
}

// ValidUntil returns the end of the validity of a verdict, by the local monotonic clock.
func ValidUntil(verdict *probev1.Verdict, sent time.Time) time.Time {
	validFor := verdict.GetValidFor().AsDuration()
	for _, limit := range []time.Duration{LongestValidity, LongestValidity - verdict.GetAge().AsDuration()} {
		if validFor > limit {
			validFor = limit
		}
	}
	if validFor < 0 {
		return sent
	}
	return sent.Add(validFor)
}

type stream[M any] interface{ Recv() (M, error) }

type opener[M any] func(context.Context) (stream[M], error)

// An item is a verdict or a scaling state, and a message is the response of the RPC that streams it.
type item interface {
	comparable
	GetShoot() string
}

type message[V any] interface {
	GetPosition() *streamv1.Position
	GetUpsert() V
	GetRemoved() string
	GetSnapshotComplete() *streamv1.SnapshotComplete
	GetHeartbeat() *streamv1.Heartbeat
}

type version struct {
	epoch    string
	revision uint64
}

func run[M message[V], V item](ctx context.Context, open opener[M], handler Handler[V]) error {
	known := map[string]version{}
	for pause := minPause; ; {
		synced, err := follow(ctx, open, handler, known)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		handler.Lost(err)
		if synced {
			pause = minPause
		}
		switch status.Code(err) {
		case codes.InvalidArgument, codes.Unimplemented, codes.Unauthenticated, codes.PermissionDenied:
			pause = maxPause // A retry helps only after a change of the server.
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause/2 + time.Duration(rand.Int63n(int64(pause/2)))):
		}
		if pause *= 2; pause > maxPause {
			pause = maxPause
		}
	}
}

// follow reads one stream until it ends. What is known outlives it.
func follow[M message[V], V item](ctx context.Context, open opener[M], handler Handler[V],
	known map[string]version) (synced bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var silent atomic.Bool
	limit := time.AfterFunc(SilenceLimit, func() { silent.Store(true); cancel() })
	defer limit.Stop()
	times := sendTimes{opened: time.Now()}
	messages, err := open(ctx)
	// Shoots of the snapshot. Before it is complete, nothing follows from the absence of others.
	snapshot := map[string]bool{}
	for err == nil {
		var message M
		if message, err = messages.Recv(); err != nil {
			break
		}
		limit.Reset(SilenceLimit)
		var none V
		position, complete := message.GetPosition(), message.GetSnapshotComplete()
		sent := times.sent(position.GetUptime().AsDuration())
		if item := message.GetUpsert(); item != none {
			now := version{position.GetEpoch(), position.GetRevision()}
			changed := known[item.GetShoot()] != now
			known[item.GetShoot()], snapshot[item.GetShoot()] = now, true
			handler.Set(item, sent, changed)
		} else if shoot := message.GetRemoved(); shoot != "" {
			delete(known, shoot)
			delete(snapshot, shoot)
			handler.Remove(shoot)
		} else if complete != nil && (synced || complete.GetItems() != uint64(len(snapshot))) {
			err = status.Error(codes.DataLoss, "the snapshot is not whole")
		} else if complete != nil {
			synced = true
			for shoot := range known {
				// The items of a missing replica are stale, not deleted.
				if !snapshot[shoot] && complete.GetCompleteness().GetComplete() {
					delete(known, shoot)
					handler.Remove(shoot)
				}
			}
			handler.Complete(complete.GetCompleteness())
		} else if completeness := message.GetHeartbeat().GetCompleteness(); completeness != nil {
			handler.Complete(completeness)
		}
	}
	if silent.Load() {
		err = ErrSilent
	}
	return synced, err
}

// sendTimes estimates when the messages of a stream were sent, by the local clock: docs/reference/api.md.
type sendTimes struct {
	opened, seen, first         time.Time
	firstUptime, delay, fastest time.Duration
}

func (s *sendTimes) sent(uptime time.Duration) time.Time {
	now := time.Now()
	if s.first.IsZero() {
		s.first, s.firstUptime, s.delay, s.seen = now, uptime, now.Sub(s.opened), now
	}
	late := now.Sub(s.first) - (uptime - s.firstUptime)
	if s.fastest += now.Sub(s.seen) / 10; late < s.fastest {
		s.fastest = late
	}
	s.seen = now
	if transit := late - s.fastest + s.delay; transit > 0 {
		return now.Add(-transit)
	}
	return now
}
