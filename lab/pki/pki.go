// Package pki makes a lab's certificates, as files that only their owner can read.
//
// It does not know who uses them. Begin with LoadOrCreate and Authority.Ensure.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
)

// validity is longer than any lab lives, and short enough that a forgotten folder does no harm.
const validity = 365 * 24 * time.Hour

// Margin is how far the clock may be set back, e.g. to correct a wrong time zone, before a lab's
// certificates are not valid yet.
const Margin = 24 * time.Hour

// Authority signs certificates.
type Authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// Pair is a certificate with its key, as files.
type Pair struct{ Cert, Key string }

// PairAt is the pair with this name in a folder.
func PairAt(dir, name string) Pair {
	return Pair{Cert: filepath.Join(dir, name+".crt"), Key: filepath.Join(dir, name+".key")}
}

// LoadOrCreate reads the CA with this name, or makes it.
func LoadOrCreate(dir, name string) (*Authority, error) {
	files := PairAt(dir, name)
	certPEM, err := os.ReadFile(files.Cert)
	if errors.Is(err, fs.ErrNotExist) {
		return createAuthority(files, name)
	}
	if err != nil {
		return nil, err
	}
	keyPEM, err := os.ReadFile(files.Key)
	if err != nil {
		return nil, err
	}
	certBlock, _ := pem.Decode(certPEM)
	keyBlock, _ := pem.Decode(keyPEM)
	if certBlock == nil || keyBlock == nil {
		return nil, fmt.Errorf("%s or its key is no PEM file", files.Cert)
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", files.Cert, err)
	}
	key, err := x509.ParseECPrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", files.Key, err)
	}
	if err := checkValidity(files.Cert, cert, time.Now()); err != nil {
		return nil, err
	}
	return &Authority{cert: cert, key: key}, nil
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
	ca := &Authority{}
	return ca, ca.writeSignedBy(ca, tmpl, files)
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
	child := &Authority{}
	return files, child.writeSignedBy(a, tmpl, files)
}

// writeSignedBy makes a key, has parent sign the template for it, and writes both. An authority that
// is its own parent signs its own. The key is written first, because a certificate without its key is
// useless.
func (a *Authority) writeSignedBy(parent *Authority, tmpl *x509.Certificate, files Pair) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return err
	}
	tmpl.SerialNumber = serial
	tmpl.NotBefore = time.Now().Add(-Margin)
	tmpl.NotAfter = time.Now().Add(validity)
	issuer, signer := parent.cert, parent.key
	if issuer == nil { // Self-signed.
		issuer, signer = tmpl, key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, issuer, key.Public(), signer)
	if err != nil {
		return err
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	a.key = key
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(
		files.Key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}),
	); err != nil {
		return err
	}
	return atomicfile.Write(files.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}
