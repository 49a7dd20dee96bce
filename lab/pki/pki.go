// Package pki makes a lab's certificates, as files that only their owner can read.
//
// It does not know who uses them. Begin with LoadOrCreate and Authority.Ensure.
package pki

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/certs"
	"github.com/ccmlab/ccmlab/lab/atomicfile"
)

// validity is longer than any lab lives, and short enough that a forgotten folder does no harm.
const validity = 365 * 24 * time.Hour

// Authority signs certificates.
type Authority struct{ *certs.Pair }

// Pair is a certificate with its key, as files.
type Pair struct{ Cert, Key string }

// PairAt is the pair with this name in a folder.
func PairAt(dir, name string) Pair {
	return Pair{Cert: filepath.Join(dir, name+".crt"), Key: filepath.Join(dir, name+".key")}
}

// LoadOrCreate reads the CA with this name, or makes it.
func LoadOrCreate(dir, name string) (*Authority, error) {
	files := PairAt(dir, name)
	if _, err := os.Stat(files.Cert); errors.Is(err, fs.ErrNotExist) {
		return createAuthority(files, name)
	}
	ca, err := certs.Load(files.Cert, files.Key)
	if err != nil {
		return nil, err
	}
	if err := checkValidity(files.Cert, ca.Cert, time.Now()); err != nil {
		return nil, err
	}
	return &Authority{ca}, nil
}

// checkValidity is an error when a certificate is not valid at this time. Without the check, all
// connections of the lab would fail, with errors that do not name the clock.
func checkValidity(file string, cert *x509.Certificate, now time.Time) error {
	switch {
	case now.Before(cert.NotBefore):
		return fmt.Errorf(
			"it is %s, and %s is valid from %s on: the clock has gone back; set it (timedatectl), or make the lab anew: `lab down`, then `lab up`",
			now.Format(time.RFC3339), file, cert.NotBefore.Format(time.RFC3339),
		)
	case now.After(cert.NotAfter):
		return fmt.Errorf(
			"it is %s, and %s was valid until %s: set the clock if it is wrong, or make the lab anew: `lab down`, then `lab up`",
			now.Format(time.RFC3339), file, cert.NotAfter.Format(time.RFC3339),
		)
	}
	return nil
}

func createAuthority(files Pair, name string) (*Authority, error) {
	tmpl := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "ccmlab-" + name},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
	}
	ca, err := writeSigned(nil, tmpl, files)
	return &Authority{ca}, err
}

// Identity is what a certificate says about its holder. A holder with addresses can be a server;
// every holder can be a client.
type Identity struct {
	Name      string
	Groups    []string
	Addresses []string
	DNSNames  []string
}

// Ensure writes a certificate for an identity, unless the file exists.
func (a *Authority) Ensure(dir, file string, who Identity) (Pair, error) {
	files := PairAt(dir, file)
	if _, err := os.Stat(files.Cert); err == nil {
		return files, nil
	}
	tmpl := &x509.Certificate{
		Subject:     pkix.Name{CommonName: who.Name, Organization: who.Groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		DNSNames:    who.DNSNames,
	}
	for _, addr := range who.Addresses {
		tmpl.IPAddresses = append(tmpl.IPAddresses, net.ParseIP(addr))
	}
	if len(who.Addresses) > 0 {
		tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	_, err := writeSigned(a.Pair, tmpl, files)
	return files, err
}

// writeSigned has ca, or the certificate itself if that is nil, sign a template, and writes certificate and key. The
// key is written first, because a certificate without its key is useless.
func writeSigned(ca *certs.Pair, tmpl *x509.Certificate, files Pair) (*certs.Pair, error) {
	now := time.Now()
	tmpl.NotAfter = now.Add(validity)
	issued, err := certs.Issue(tmpl, ca, now)
	if err != nil {
		return nil, err
	}
	cert, key, err := issued.Encode()
	if err != nil {
		return nil, err
	}
	if err := atomicfile.Write(files.Key, key); err != nil {
		return nil, err
	}
	return issued, atomicfile.Write(files.Cert, cert)
}
