package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/lab/demoserver"
)

// portServer serves the ports of one container.
type portServer struct {
	http        *http.Server
	listeners   []net.Listener
	packetConns []net.PacketConn
}

// startPorts listens on all ports that the container declares, or on none. A port that only a probe names
// may be another container's: its failure is logged, and the probe decides. It needs r.mu, so that
// endContainerLocked runs only after it has returned.
func (r *Runtime) startPorts(c *container) (*portServer, error) {
	c.log.writeLine(stdout, r.greetingLine(c))
	answers := r.newAnswerer(c)
	// A grpc probe speaks HTTP/2 without TLS, from the first byte on.
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &portServer{http: &http.Server{
		Protocols:         protocols,
		Handler:           answers,
		ReadHeaderTimeout: 30 * time.Second,
		ErrorLog:          log.New(io.Discard, "", 0),
	}}
	for _, at := range r.listenEndpoints(c) {
		if at.protocol != v1.ProtocolTCP && at.protocol != v1.ProtocolUDP {
			c.log.writeLine(stderr, fmt.Sprintf(
				"port %d/%s is not served: the simulated node serves TCP and UDP only", at.address.Port(), at.protocol,
			))
			continue
		}
		err := server.listen(at)
		if err != nil && at.unlisted {
			c.log.writeLine(stderr, fmt.Sprintf("cannot serve port %d, which a probe asks: %v", at.address.Port(), err))
			continue
		}
		if err != nil {
			server.close()
			return nil, fmt.Errorf("cannot serve port %d/%s: %w", at.address.Port(), at.protocol, err)
		}
		c.log.writeLine(stdout, fmt.Sprintf("listening on %s/%s", at.address, at.protocol))
	}
	for _, listener := range server.listeners {
		go func() { _ = server.http.Serve(listener) }()
	}
	for _, udp := range server.packetConns {
		go answers.Echo(udp)
	}
	return server, nil
}

func (p *portServer) listen(at listenEndpoint) error {
	if at.protocol == v1.ProtocolUDP {
		udp, err := net.ListenPacket("udp4", at.address.String())
		if err == nil {
			p.packetConns = append(p.packetConns, udp)
		}
		return err
	}
	listener, err := net.Listen("tcp4", at.address.String())
	if err == nil {
		p.listeners = append(p.listeners, listener)
	}
	return err
}

// greetingLine is the first line of a container's log.
func (r *Runtime) greetingLine(c *container) string {
	where := "host network of " + r.options.NodeName
	if !c.sandbox.hostNetwork {
		where = fmt.Sprintf("%s, realised as %s", c.sandbox.address, r.loopbackAddress(c.sandbox))
	}
	idleNote := ""
	if len(c.spec.container.Ports)+len(c.spec.unlistedPorts) == 0 {
		idleNote = "; it declares no port, so it does nothing until it is told to end"
	}
	return fmt.Sprintf("simulated container %s of pod %s on %s (%s): image %s is named, not run%s",
		c.containerName(), c.podName(), r.options.NodeName, where, c.imageName(), idleNote)
}

// newAnswerer returns what answers requests to a container, for one run of it.
func (r *Runtime) newAnswerer(c *container) *demoserver.Answerer {
	pod := c.sandbox.config.GetMetadata()
	base := demoserver.Identity{
		Pod:       pod.GetName(),
		Namespace: pod.GetNamespace(),
		Node:      r.options.NodeName,
		PodIP:     r.options.NodeAddress.String(),
		Container: c.containerName(),
		Image:     c.imageName(),
	}
	if !c.sandbox.hostNetwork {
		base.PodIP = c.sandbox.address.String()
	}
	logFile, volumes := c.log, r.publicVolumes(c)
	return &demoserver.Answerer{
		Identity: func() demoserver.Identity {
			id := base
			id.Zone = r.options.Zone()
			return id
		},
		Env:    c.spec.shownVariables(c.config.GetEnvs()),
		Files:  func() map[string]string { return demoserver.ReadVolumes(volumes) },
		Probes: c.spec.probes,
		Log:    func(line string) { logFile.writeLine(stdout, line) },
		Exit:   func(code uint8, reason string) { r.endContainer(c, int32(code), reason) },
	}
}

// drainRequests stops listening and waits for the requests in progress. It reports whether they all
// have finished in time.
func (p *portServer) drainRequests(grace time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	p.stopListening()
	// Shutdown also fails with the error of a listener that is closed already, if its Serve has
	// not noticed that yet.
	return !errors.Is(p.http.Shutdown(ctx), context.DeadlineExceeded)
}

func (p *portServer) close() {
	p.stopListening()
	_ = p.http.Close()
	for _, udp := range p.packetConns {
		_ = udp.Close()
	}
}

// stopListening frees the ports at once. A http.Server knows a listener only once its Serve has
// begun, and would leave it open for a moment if it was closed before.
func (p *portServer) stopListening() {
	for _, listener := range p.listeners {
		_ = listener.Close()
	}
}
