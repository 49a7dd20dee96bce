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

	"github.com/ccmlab/ccmlab/cmd/hello/demoserver"
)

// portServer serves all ports of one container.
type portServer struct {
	http      *http.Server
	listeners []net.Listener
	datagrams []net.PacketConn
}

// serve listens on all of the container's ports or on none. It needs r.mu, and
// r.ended runs only after it has returned.
func (r *Runtime) serve(c *container) (*portServer, error) {
	c.log.write(stdout, r.greeting(c))
	answers := r.answerer(c)
	server := &portServer{http: &http.Server{
		Handler:           answers,
		ReadHeaderTimeout: 30 * time.Second,
		ErrorLog:          log.New(io.Discard, "", 0),
	}}
	for _, at := range r.endpoints(c) {
		if at.protocol != protocolTCP && at.protocol != protocolUDP {
			c.log.write(stderr, fmt.Sprintf("port %d/%s is not served: the simulated node serves TCP and UDP only", at.address.Port(), at.protocol))
			continue
		}
		if err := server.listen(at); err != nil {
			server.close()
			return nil, fmt.Errorf("cannot serve port %d/%s: %w", at.address.Port(), at.protocol, err)
		}
		c.log.write(stdout, fmt.Sprintf("listening on %s/%s", at.address, at.protocol))
	}
	for _, listener := range server.listeners {
		go func() { _ = server.http.Serve(listener) }()
	}
	for _, udp := range server.datagrams {
		go answers.Echo(udp)
	}
	return server, nil
}

func (s *portServer) listen(at endpoint) error {
	if at.protocol == protocolUDP {
		udp, err := net.ListenPacket("udp4", at.address.String())
		if err == nil {
			s.datagrams = append(s.datagrams, udp)
		}
		return err
	}
	listener, err := net.Listen("tcp4", at.address.String())
	if err == nil {
		s.listeners = append(s.listeners, listener)
	}
	return err
}

func (r *Runtime) greeting(c *container) string {
	where := "host network of " + r.options.NodeName
	if !c.sandbox.hostNetwork {
		where = fmt.Sprintf("%s, realised as %s", c.sandbox.address, r.realised(c.sandbox))
	}
	does := ""
	if len(c.ports) == 0 {
		does = "; it declares no port, so it does nothing until it is told to end"
	}
	return fmt.Sprintf("simulated container %s of pod %s on %s (%s): image %s is named, not run%s",
		c.name(), c.podName(), r.options.NodeName, where, c.image(), does)
}

func (r *Runtime) answerer(c *container) *demoserver.Answerer {
	pod := c.sandbox.config.GetMetadata()
	base := demoserver.Identity{
		Pod:       pod.GetName(),
		Namespace: pod.GetNamespace(),
		Node:      r.options.NodeName,
		PodIP:     r.options.NodeAddress.String(),
		Container: c.name(),
		Image:     c.image(),
	}
	if !c.sandbox.hostNetwork {
		base.PodIP = c.sandbox.address.String()
	}
	logFile, volumes := c.log, r.openVolumes(c)
	return &demoserver.Answerer{
		Identity: func() demoserver.Identity {
			id := base
			id.Zone = r.options.Zone()
			return id
		},
		Env:    c.spec.env(c.config.GetEnvs()),
		Files:  func() map[string]string { return demoserver.ReadVolumes(volumes) },
		Probes: c.spec.probes,
		Log:    func(line string) { logFile.write(stdout, line) },
		Exit:   func(code uint8, reason string) { r.end(c, int32(code), reason) },
	}
}

// drain stops listening and waits for the requests in progress; it reports
// whether they all finished in time.
func (s *portServer) drain(grace time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	s.stopListening()
	// That a listener is closed already, which its Serve has not noticed yet, is an
	// error of Shutdown's too.
	return !errors.Is(s.http.Shutdown(ctx), context.DeadlineExceeded)
}

func (s *portServer) close() {
	s.stopListening()
	_ = s.http.Close()
	for _, udp := range s.datagrams {
		_ = udp.Close()
	}
}

// stopListening frees the ports at once. http.Server knows a listener only when
// its Serve has begun, and one that is closed before leaves it open for a moment.
func (s *portServer) stopListening() {
	for _, listener := range s.listeners {
		_ = listener.Close()
	}
}
