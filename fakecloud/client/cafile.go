package client

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
)

// caTransport verifies the cloud's certificate with the CA file. It reads the file for every
// request, as the token's is read: a mounted file changes in place. A changed file has new
// connections made. A file that cannot be used leaves the last good one in use.
type caTransport struct {
	file   string
	base   *http.Transport // what to clone for each bundle
	report func(error)     // may be nil

	mu      sync.Mutex
	bundle  []byte // that current verifies with
	current *http.Transport
	fault   error // why the file as it is now is not used, nil if it is
}

func newCATransport(file string, base *http.Transport, report func(error)) (*caTransport, error) {
	t := &caTransport{file: file, base: base, report: report}
	if _, err := t.refresh(); err != nil {
		return nil, err
	}
	return t, nil
}

// RoundTrip implements http.RoundTripper. A failure names what is wrong with the file, if anything.
func (t *caTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	transport, fault := t.refresh()
	resp, err := transport.RoundTrip(req)
	if err != nil && fault != nil {
		err = fmt.Errorf("%w (%w)", err, fault)
	}
	return resp, err
}

// refresh returns the transport for the file as it is now. With an error, it returns the transport
// for the last good file.
func (t *caTransport) refresh() (*http.Transport, error) {
	t.mu.Lock() // Before it reads, so that an older bundle does not follow a newer one.
	defer t.mu.Unlock()
	bundle, err := os.ReadFile(t.file)
	if err == nil && !bytes.Equal(bundle, t.bundle) {
		err = t.use(bundle)
	}
	last := t.fault
	t.fault = nil
	if err != nil {
		t.fault = fmt.Errorf("CA file %s: %w", t.file, err)
		if t.current != nil {
			t.fault = fmt.Errorf("%w; what it held before stays in use", t.fault)
		}
		if t.report != nil && (last == nil || last.Error() != t.fault.Error()) {
			t.report(t.fault)
		}
	}
	return t.current, t.fault
}

// use makes a transport that verifies with the bundle. Calls under way end on the previous one.
func (t *caTransport) use(bundle []byte) error {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
		return errors.New("it holds no PEM certificate")
	}
	begun := bytes.Count(bundle, []byte("-----BEGIN CERTIFICATE-----"))
	if ended := bytes.Count(bundle, []byte("-----END CERTIFICATE-----")); begun != ended {
		return errors.New("it ends within a certificate")
	}
	transport := t.base.Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	if t.current != nil {
		t.current.CloseIdleConnections()
	}
	t.bundle, t.current = bundle, transport
	return nil
}
