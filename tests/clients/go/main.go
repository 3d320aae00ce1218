// Follows the verdicts on all shoots and says when one changes: an example of a client in Go.
//
//	watch-verdicts ADDRESS [CA CERTIFICATE KEY SERVERNAME]
//
// Without certificates it speaks plaintext. The generated code is in target/clients/go (tests/clients/generate).
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"math/rand"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	probe "gardener.cloud/dependency-watchdog/clients/gardener/watchdog/probe/v1"
)

// Three heartbeats missed: the stream is dead.
const silence = 15 * time.Second

func main() {
	channel, err := connect(os.Args[1:])
	if err != nil {
		log.Fatal(err)
	}
	client := probe.NewLeaseProbeServiceClient(channel)
	// The latest verdict of every shoot; it outlives streams.
	known := map[string]received{}
	for pause := time.Second; ; {
		began := time.Now()
		log.Printf("lost: %v", follow(client, known))
		// The end of a stream says nothing about shoots: go on with what is known, and come back soon.
		if pause *= 2; pause > 30*time.Second || time.Since(began) > silence {
			pause = time.Second
		}
		time.Sleep(time.Duration(rand.Int63n(int64(pause))))
	}
}

// connect gives a channel with or without TLS.
func connect(args []string) (*grpc.ClientConn, error) {
	// A dead connection is noticed without waiting for TCP.
	alive := grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: silence})
	switch len(args) {
	case 1:
		return grpc.Dial(args[0], alive, grpc.WithInsecure())
	case 5:
		pem, err := os.ReadFile(args[1])
		if err != nil {
			return nil, err
		}
		certificate, err := tls.LoadX509KeyPair(args[2], args[3])
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		config := &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{certificate}, ServerName: args[4]}
		return grpc.Dial(args[0], alive, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	default:
		return nil, fmt.Errorf("usage: watch-verdicts ADDRESS [CA CERTIFICATE KEY SERVERNAME]")
	}
}

// sendTimes finds when the messages of one stream were sent, by the clock of this process (docs/reference/api.md).
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

// received is a verdict and until when it may be acted upon.
type received struct {
	*probe.Verdict
	validUntil time.Time
}

// follow reads one stream until it ends.
func follow(client probe.LeaseProbeServiceClient, known map[string]received) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	times := sendTimes{opened: time.Now()}
	stream, err := client.WatchVerdicts(ctx, &probe.WatchVerdictsRequest{})
	if err != nil {
		return err
	}
	// Collected until the snapshot is complete; before that moment nothing may be concluded.
	snapshot := map[string]received{}
	dead := time.AfterFunc(silence, cancel)
	defer dead.Stop()
	for {
		update, err := stream.Recv()
		if err != nil {
			return err
		}
		dead.Reset(silence)
		sent := times.sent(update.Position.GetUptime().AsDuration())
		switch event := update.Event.(type) {
		case *probe.WatchVerdictsResponse_Upsert:
			// Act on a verdict until then, and no longer.
			verdict := received{event.Upsert, sent.Add(event.Upsert.ValidFor.AsDuration())}
			if snapshot != nil {
				snapshot[verdict.Shoot] = verdict
			} else {
				record(known, verdict)
			}
		case *probe.WatchVerdictsResponse_Removed:
			if snapshot == nil {
				delete(known, event.Removed)
				fmt.Printf("%s is gone\n", event.Removed)
			}
		case *probe.WatchVerdictsResponse_SnapshotComplete:
			// What is not in a whole snapshot is gone.
			for shoot := range known {
				if snapshot[shoot].Verdict == nil && event.SnapshotComplete.GetCompleteness().GetComplete() {
					delete(known, shoot)
				}
			}
			for _, verdict := range snapshot {
				record(known, verdict)
			}
			snapshot = nil
			fmt.Printf("complete: %d shoots\n", len(known))
		}
	}
}

// record keeps a verdict, and prints it if its outcome differs from the last one.
func record(known map[string]received, verdict received) {
	before := known[verdict.Shoot]
	known[verdict.Shoot] = verdict
	if before.Verdict == nil || before.Outcome != verdict.Outcome {
		valid := time.Until(verdict.validUntil).Round(time.Second)
		fmt.Printf("%s %s (valid for %s): %s\n", verdict.Shoot, verdict.Outcome, valid, verdict.Message)
	}
}
