// Follows the verdicts on all shoots and says when one changes: an example of a client in Go.
//
//	watch-verdicts ADDRESS [CA CERTIFICATE KEY SERVERNAME]
//
// Without certificates it speaks plaintext.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/gardener/dependency-watchdog/proto/go/follow"
	probev1 "github.com/gardener/dependency-watchdog/proto/go/probe/v1"
	streamv1 "github.com/gardener/dependency-watchdog/proto/go/stream/v1"
)

func main() {
	channel, err := connect(os.Args[1:])
	if err != nil {
		log.Fatal(err)
	}
	client, printer := probev1.NewLeaseProbeServiceClient(channel), &printer{verdicts: map[string]received{}}
	log.Fatal(follow.Verdicts(context.Background(), client, &probev1.WatchVerdictsRequest{}, printer))
}

// connect gives a channel with or without TLS.
func connect(args []string) (*grpc.ClientConn, error) {
	// A dead connection is noticed without waiting for TCP.
	alive := grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: follow.SilenceLimit, Timeout: 5 * time.Second})
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

// received is a verdict, and until when it may be acted upon.
type received struct {
	*probev1.Verdict
	validUntil time.Time
}

// printer has the latest verdict of every shoot, and prints what changes.
type printer struct {
	verdicts map[string]received
	state    string
}

// Set keeps a verdict, and prints it if its outcome differs from the last one.
func (p *printer) Set(verdict *probev1.Verdict, sent time.Time, changed bool) {
	last := p.verdicts[verdict.Shoot]
	now := received{verdict, follow.ValidUntil(verdict, sent)}
	p.verdicts[verdict.Shoot] = now
	if last.Verdict == nil || last.Outcome != verdict.Outcome {
		valid := time.Until(now.validUntil).Round(time.Second)
		fmt.Printf("%s %s (valid for %s): %s\n", verdict.Shoot, verdict.Outcome, valid, verdict.Message)
	}
}

// Remove forgets a shoot.
func (p *printer) Remove(shoot string) {
	delete(p.verdicts, shoot)
	fmt.Printf("%s is gone\n", shoot)
}

// Complete says how much is known, if that has changed.
func (p *printer) Complete(completeness *streamv1.Completeness) {
	if completeness.GetComplete() {
		p.show(fmt.Sprintf("complete: %d shoots", len(p.verdicts)))
	} else {
		p.show(fmt.Sprintf("incomplete: %v", completeness.GetMissingReplicas()))
	}
}

// Lost says why a stream ended, and how many verdicts may still be acted upon.
func (p *printer) Lost(err error) {
	valid := 0
	for _, verdict := range p.verdicts {
		if time.Now().Before(verdict.validUntil) {
			valid++
		}
	}
	p.show(fmt.Sprintf("lost with %d valid verdicts: %v", valid, err))
}

func (p *printer) show(state string) {
	if state != p.state {
		fmt.Println(state)
	}
	p.state = state
}
