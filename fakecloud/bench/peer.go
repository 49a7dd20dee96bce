package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"

	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
)

const (
	peerBuildTimeout = 5 * time.Minute
	// peerFillTimeout bounds filling the peer. It is measured with the machines that
	// it has by then.
	peerFillTimeout = 90 * time.Second
)

// peer is a running vSphere simulator.
type peer struct {
	*harness.Process
	address, folder, pool string
	version               string
	session               string
	machines              []string // IDs of the stored ones
}

var peerLine = regexp.MustCompile(`(?m)^peer (\S+ is ready at \S+ folder \S+ pool \S+)$`)

// measurePeer returns the peer's rows, or one row that says why there are none: the peer's
// module may not be available.
func (b *bench) measurePeer(ctx context.Context, r *report) []row {
	rows, err := b.peerRows(ctx, r)
	if err != nil {
		rows = append(rows, row{Name: peerRow, Figure: "peer", Measured: "could not be measured", Note: err.Error()})
	}
	return rows
}

func (b *bench) peerRows(ctx context.Context, r *report) ([]row, error) {
	binary := filepath.Join(b.dir, "peer")
	building, cancel := context.WithTimeout(ctx, peerBuildTimeout)
	defer cancel()
	build := exec.CommandContext(building, "go", "build", "-trimpath", "-buildvcs=false", "-o", binary, ".")
	build.Dir, build.WaitDelay = b.peer, time.Second
	build.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("it cannot be built: %w: %.500s", errors.Join(err, building.Err()), out)
	}
	p, err := b.startPeer(ctx, binary)
	if p != nil {
		defer p.Kill()
	}
	if err != nil {
		return nil, err
	}
	if err := b.fillPeer(ctx, p); err != nil {
		return nil, err
	}
	return b.measurePeerCalls(ctx, p, r)
}

func (b *bench) startPeer(ctx context.Context, binary string) (*peer, error) {
	cmd := exec.Command(binary)
	files := filepath.Join(b.dir, "peer-files")
	if err := os.Mkdir(files, 0o700); err != nil {
		return nil, err
	}
	cmd.Env = append(os.Environ(), "TMPDIR="+files)
	proc, err := harness.Start(cmd, filepath.Join(b.dir, "peer.log"))
	if err != nil {
		return nil, err
	}
	p := &peer{Process: proc}
	line, err := proc.AwaitLine(ctx, peerLine)
	if err != nil {
		return p, err
	}
	if _, err := fmt.Sscanf(
		line, "%s is ready at %s folder %s pool %s", &p.version, &p.address, &p.folder, &p.pool,
	); err != nil {
		return p, fmt.Errorf("%q: %w", line, err)
	}
	body, err := p.callOnce(ctx, `<Login xmlns="urn:vim25"><_this type="SessionManager">SessionManager</_this>`+
		`<userName>bench</userName><password>bench</password></Login>`)
	if err != nil {
		return p, err
	}
	key := sessionKey.FindSubmatch(body)
	if key == nil {
		return p, fmt.Errorf("no session in %.500s", body)
	}
	p.session = string(key[1])
	return p, nil
}

var (
	sessionKey = regexp.MustCompile(`<key>([^<]+)</key>`)
	machineID  = regexp.MustCompile(`>(vm-[0-9]+)<`)
)

// newTarget is a call of the peer.
func (p *peer) newTarget(body string) vegeta.Target {
	return vegeta.Target{
		Method: http.MethodPost, URL: "http://" + p.address + "/sdk",
		Header: http.Header{
			"Content-Type": {"text/xml; charset=utf-8"}, "Cookie": {"vmware_soap_session=" + p.session},
		},
		Body: []byte(`<?xml version="1.0" encoding="UTF-8"?>` +
			`<Envelope xmlns="http://schemas.xmlsoap.org/soap/envelope/"><Body>` + body + `</Body></Envelope>`),
	}
}

// callOnce makes one call, and returns its answer.
func (p *peer) callOnce(ctx context.Context, body string) (answer []byte, err error) {
	err = load{
		Clients: 1, Max: 1, Want: http.StatusOK, Next: func(int) vegeta.Target { return p.newTarget(body) },
		Check: func(r *vegeta.Result) error { answer = r.Body; return nil },
	}.runAll(ctx)
	return answer, err
}

// createMachines is a load that creates virtual machines. A SOAP fault has status 500.
func (p *peer) createMachines(s size, limit int, prefix string) load {
	return load{
		Clients: s.Clients, Max: limit, Want: http.StatusOK,
		Next: func(n int) vegeta.Target {
			return p.newTarget(fmt.Sprintf(`<CreateVM_Task xmlns="urn:vim25"><_this type="Folder">%s</_this>`+
				`<config><name>%s-%d</name><guestId>otherGuest</guestId><files><vmPathName>[LocalDS_0]</vmPathName></files>`+
				`<numCPUs>1</numCPUs><memoryMB>32</memoryMB></config>`+
				`<pool type="ResourcePool">%s</pool></CreateVM_Task>`, p.folder, prefix, n, p.pool))
		},
	}
}

// retrieveProperties is the body of a call that reads a property of one object.
func retrieveProperties(kind, id, path string) string {
	return fmt.Sprintf(`<RetrieveProperties xmlns="urn:vim25"><_this type="PropertyCollector">propertyCollector</_this>`+
		`<specSet><propSet><type>%[1]s</type><pathSet>%[3]s</pathSet></propSet>`+
		`<objectSet><obj type="%[1]s">%[2]s</obj></objectSet></specSet></RetrieveProperties>`, kind, id, path)
}

// describeMachine is a load that reads the summary of random machines: name, configuration and
// state, as a read of an instance returns them.
func (p *peer) describeMachine(s size) load {
	return load{
		Clients: s.Clients, Warm: s.Warm, Period: s.Period, Want: http.StatusOK,
		Next: func(int) vegeta.Target {
			return p.newTarget(retrieveProperties("VirtualMachine", p.machines[rand.IntN(len(p.machines))], "summary"))
		},
	}
}

// awaitMachines waits until the peer lists n machines: it creates them after its reply.
func (p *peer) awaitMachines(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, harness.StartTimeout)
	defer cancel()
	for {
		body, err := p.callOnce(ctx, retrieveProperties("Folder", p.folder, "childEntity"))
		if err != nil {
			return err
		}
		found := machineID.FindAllSubmatch(body, -1)
		if len(found) >= n {
			p.machines = p.machines[:0]
			for _, m := range found {
				p.machines = append(p.machines, string(m[1]))
			}
			return nil
		}
		if err := harness.Sleep(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("%d machines were acknowledged, %d are there: %w", n, len(found), err)
		}
	}
}

func (b *bench) fillPeer(ctx context.Context, p *peer) error {
	harness.LogProgress("creating up to %d machines at the peer …", b.size.Instances)
	l := p.createMachines(b.size, b.size.Instances, "node")
	l.Period = peerFillTimeout
	res, err := l.run(ctx)
	if err != nil {
		return err
	}
	if res.Failed > 0 || res.Calls == 0 {
		return fmt.Errorf("%d calls failed: %s", res.Failed, res.Failure)
	}
	return p.awaitMachines(ctx, res.Calls)
}

// measurePeerCalls measures describe and create, and compares them with the cloud's figures.
func (b *bench) measurePeerCalls(ctx context.Context, p *peer, r *report) ([]row, error) {
	stored := len(p.machines)
	described, err := p.describeMachine(b.size).run(ctx)
	if err != nil {
		return nil, err
	}
	l := p.createMachines(b.size, b.size.Creates, "created")
	l.Period = b.size.Period
	begin := time.Now()
	created, err := l.run(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.awaitMachines(ctx, stored+created.Calls); err != nil {
		return nil, err
	}
	created.Elapsed = time.Since(begin)
	describe, create := row{Name: peerRow, Figure: "peer: describe one"}, row{Name: peerRow, Figure: "peer: create"}
	describeRate(&describe, described)
	describeRate(&create, created)
	addRatio(&describe, r, "get")
	addRatio(&create, r, "create")
	about := fmt.Sprintf("vcsim's engine (github.com/vmware/govmomi %s), a vSphere simulator, with %s machines stored. "+
		"It keeps its state in memory: nothing is durable. Debian 12 has no package of moto.",
		p.version, harness.Grouped(float64(stored)))
	describe.Note = joinNotes(about, describe.Note)
	return []row{describe, create}, nil
}

// addRatio adds how many times as fast the cloud is, if the cloud's row was measured.
func addRatio(line *row, r *report, name string) {
	theirs := line.Values["perSecond"]
	for _, own := range r.Rows {
		if own.Name == name && theirs > 0 {
			ratio := own.Values["perSecond"] / theirs
			line.Values["ratio"] = ratio
			line.Measured += fmt.Sprintf("; fakecloud does %.2f times that", ratio)
		}
	}
}
