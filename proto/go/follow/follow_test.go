package follow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"sort"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	probev1 "github.com/gardener/dependency-watchdog/proto/go/probe/v1"
	streamv1 "github.com/gardener/dependency-watchdog/proto/go/stream/v1"
)

// messages is a stream that ends after its messages.
type messages []*probev1.WatchVerdictsResponse

func (m *messages) Recv() (*probev1.WatchVerdictsResponse, error) {
	if len(*m) == 0 {
		return nil, io.EOF
	}
	next := (*m)[0]
	*m = (*m)[1:]
	return next, nil
}

// recorder is a handler that notes what it receives.
type recorder []string

func (r *recorder) Set(verdict *probev1.Verdict, _ time.Time, changed bool) {
	*r = append(*r, fmt.Sprintf("set %s %v", verdict.Shoot, changed))
}
func (r *recorder) Remove(shoot string) { *r = append(*r, "remove "+shoot) }
func (r *recorder) Complete(completeness *streamv1.Completeness) {
	*r = append(*r, fmt.Sprintf("complete %v", completeness.GetComplete()))
}
func (r *recorder) Lost(err error) { *r = append(*r, "lost") }

func upsert(epoch string, revision uint64, shoot string) *probev1.WatchVerdictsResponse {
	return &probev1.WatchVerdictsResponse{
		Position: &streamv1.Position{Epoch: epoch, Revision: revision},
		Event:    &probev1.WatchVerdictsResponse_Upsert{Upsert: &probev1.Verdict{Shoot: shoot}},
	}
}

func complete(items uint64, whole bool) *probev1.WatchVerdictsResponse {
	snapshot := &streamv1.SnapshotComplete{Items: items, Completeness: &streamv1.Completeness{Complete: whole}}
	return &probev1.WatchVerdictsResponse{
		Position: &streamv1.Position{},
		Event:    &probev1.WatchVerdictsResponse_SnapshotComplete{SnapshotComplete: snapshot},
	}
}

// received returns what a handler receives of one stream.
func received(known map[string]version, stream_ ...*probev1.WatchVerdictsResponse) ([]string, bool, error) {
	list, got := messages(stream_), recorder{}
	open := func(context.Context) (stream[*probev1.WatchVerdictsResponse], error) { return &list, nil }
	synced, err := follow[*probev1.WatchVerdictsResponse, *probev1.Verdict](context.Background(), open, &got, known)
	sort.Strings(got)
	return got, synced, err
}

func TestAStreamOfTheSameServerChangesOnlyWhatIsNew(t *testing.T) {
	known := map[string]version{}
	for _, step := range []struct {
		messages []*probev1.WatchVerdictsResponse
		want     []string
	}{
		{
			[]*probev1.WatchVerdictsResponse{upsert("e", 1, "a"), upsert("e", 2, "b"), complete(2, true)},
			[]string{"complete true", "set a true", "set b true"},
		},
		{
			[]*probev1.WatchVerdictsResponse{upsert("e", 1, "a"), upsert("e", 3, "b"), complete(2, true)},
			[]string{"complete true", "set a false", "set b true"},
		},
		// Another server counts anew. What is missing is not gone, until the answer is complete.
		{
			[]*probev1.WatchVerdictsResponse{upsert("f", 1, "a"), complete(1, false)},
			[]string{"complete false", "set a true"},
		},
		{
			[]*probev1.WatchVerdictsResponse{upsert("f", 1, "a"), complete(1, true)},
			[]string{"complete true", "remove b", "set a false"},
		},
	} {
		got, synced, err := received(known, step.messages...)
		if !reflect.DeepEqual(got, step.want) || !synced || !errors.Is(err, io.EOF) {
			t.Errorf("got %v, %v, %v; want %v", got, synced, err, step.want)
		}
	}
}

func TestASnapshotThatIsNotWholeRemovesNothing(t *testing.T) {
	known := map[string]version{"b": {"e", 1}}
	got, synced, err := received(known, upsert("e", 2, "a"), complete(2, true))
	if want := []string{"set a true"}; !reflect.DeepEqual(got, want) || synced || err == nil {
		t.Errorf("got %v, %v, %v; want %v and an error", got, synced, err, want)
	}
}

func TestValidityCountsFromTheSendingAndIsBounded(t *testing.T) {
	for _, row := range []struct{ age, validFor, want time.Duration }{
		{3, 20, 20}, {3, 0, 0}, {3, -5, 0}, {3, 9999999, 597}, {599, 20, 1}, {600, 20, 0}, {-9999999, 9999999, 600},
	} {
		verdict := &probev1.Verdict{
			Age:      durationpb.New(row.age * time.Second),
			ValidFor: durationpb.New(row.validFor * time.Second),
		}
		sent := time.Now()
		if got := ValidUntil(verdict, sent).Sub(sent); got != row.want*time.Second {
			t.Errorf("age %d s, valid for %d s: %v, want %d s", row.age, row.validFor, got, row.want)
		}
	}
}

func TestAMessageThatWasDelayedIsDatedBack(t *testing.T) {
	start := time.Now()
	times := sendTimes{opened: start}
	times.sent(100 * time.Second)
	// The server sent it at once, by its uptime, and it arrived a minute after the first one.
	times.first, times.seen = times.first.Add(-time.Minute), times.seen.Add(-time.Minute)
	if sent := times.sent(100 * time.Second); sent.After(start.Add(-50 * time.Second)) {
		t.Errorf("sent %v after the start", sent.Sub(start))
	}
}
