package cli

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/certs"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

const (
	caLifetime     = 10 * 365 * 24 * time.Hour
	serverLifetime = 365 * 24 * time.Hour
	// renewBefore is how long before its expiry a certificate is replaced, at a start of
	// the cloud.
	renewBefore = 30 * 24 * time.Hour
)

// validSAN matches a DNS name, or a wildcard for a domain.
var validSAN = regexp.MustCompile(`^(\*\.)?[a-zA-Z0-9]([-a-zA-Z0-9.]*[a-zA-Z0-9])?$`)

// tlsDir is the folder of the certificates: the data's.
func (o *serveOptions) tlsDir() string {
	if o.data == store.Memory {
		return stateDir()
	}
	return filepath.Dir(o.data)
}

// selfSigned returns a server certificate for the names that clients may use, and the file
// of the CA that signed it. Both are kept in files, and replaced only if they expire soon or
// the names have changed.
func (o *serveOptions) selfSigned(now time.Time) (*tls.Certificate, string, error) {
	names, err := o.serverNames()
	if err != nil {
		return nil, "", err
	}
	caFile := filepath.Join(o.tlsDir(), "ca.crt")
	ca, err := loadCertificate(caFile, filepath.Join(o.tlsDir(), "ca.key"))
	if err == nil && (ca == nil || now.Add(renewBefore).After(ca.Cert.NotAfter)) {
		ca, err = o.issueCertificate("ca", &x509.Certificate{
			Subject: pkix.Name{CommonName: "fakecloud CA"}, NotAfter: now.Add(caLifetime),
			IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
		}, nil, now)
	}
	if err != nil {
		return nil, "", err
	}
	server, err := loadCertificate(filepath.Join(o.tlsDir(), "server.crt"), filepath.Join(o.tlsDir(), "server.key"))
	if err == nil && !isValidFor(server, names, ca, now) {
		server, err = o.issueCertificate("server", serverCertificateTemplate(names, now), ca, now)
	}
	if err != nil {
		return nil, "", err
	}
	return &tls.Certificate{
		Certificate: [][]byte{server.Cert.Raw, ca.Cert.Raw}, PrivateKey: server.Key, Leaf: server.Cert,
	}, caFile, nil
}

// serverNames are the names and IP addresses that the server may be reached by, sorted and
// without duplicates.
func (o *serveOptions) serverNames() ([]string, error) {
	names := []string{"localhost", "127.0.0.1"}
	host, _, err := net.SplitHostPort(o.listen)
	if err != nil {
		return nil, clikit.Usagef("--listen %q: want host:port, such as %s", o.listen, defaultListen)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		names = append(names, ownNames()...)
	} else {
		names = append(names, host)
	}
	for _, name := range o.sans {
		if net.ParseIP(name) == nil && !validSAN.MatchString(name) {
			return nil, clikit.Usagef("--tls-san %q: want an IP address or a DNS name", name)
		}
		names = append(names, name)
	}
	for i, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			names[i] = ip.String()
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// ownNames are the host name and IP addresses by which others may reach this machine.
func ownNames() (names []string) {
	if host, err := os.Hostname(); err == nil && validSAN.MatchString(host) {
		names = append(names, host)
	}
	addrs, _ := net.InterfaceAddrs() // If they cannot be listed, --tls-san can name them.
	for _, addr := range addrs {
		// A link-local address needs a zone, which no certificate has.
		if on, ok := addr.(*net.IPNet); ok && !on.IP.IsLinkLocalUnicast() {
			names = append(names, on.IP.String())
		}
	}
	return names
}

// serverCertificateTemplate is the unsigned certificate of a server with these names.
func serverCertificateTemplate(names []string, now time.Time) *x509.Certificate {
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: "fakecloud"}, NotAfter: now.Add(serverLifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, name)
		}
	}
	return c
}

// isValidFor tells whether a certificate is signed by ca, is for exactly these names, and
// does not expire soon.
func isValidFor(server *certs.Pair, names []string, ca *certs.Pair, now time.Time) bool {
	if server == nil || now.Add(renewBefore).After(server.Cert.NotAfter) ||
		server.Cert.CheckSignatureFrom(ca.Cert) != nil {
		return false
	}
	has := slices.Clone(server.Cert.DNSNames)
	for _, ip := range server.Cert.IPAddresses {
		has = append(has, ip.String())
	}
	slices.Sort(has)
	return slices.Equal(has, names)
}

// loadCertificate reads a certificate and its key. It returns nil if either is missing.
func loadCertificate(certFile, keyFile string) (*certs.Pair, error) {
	pair, err := certs.Load(certFile, keyFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("--tls-self-signed: %w; remove both to create new ones", err)
	}
	return pair, nil
}

// issueCertificate makes a key and a certificate for it, signed by ca or, if that is nil,
// self-signed, and writes both to files.
func (o *serveOptions) issueCertificate(
	name string,
	c *x509.Certificate,
	ca *certs.Pair,
	now time.Time,
) (*certs.Pair, error) {
	issued, err := certs.Issue(c, ca, now)
	if err != nil {
		return nil, err
	}
	cert, key, err := issued.Encode()
	if err != nil {
		return nil, err
	}
	// Remove the old certificate first, and write the new one last: a certificate is
	// never in its file without its own key in the other.
	base := filepath.Join(o.tlsDir(), name)
	if err := os.Remove(base + ".crt"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := writeSecret(base+".key", key); err != nil {
		return nil, err
	}
	if err := writeSecret(base+".crt", cert); err != nil {
		return nil, err
	}
	return issued, os.Chmod(base+".crt", 0o644) //nolint:gosec // Certificates are for everyone.
}
