package cluster

// Key pairs of clients that sign their calls instead of showing a token. The cloud has the public key beside the
// token.

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
	"github.com/ccmlab/ccmlab/lab/atomicfile"
)

const keyBits = 2048

// TokenKeys are the public keys of tokens in the cloud.
type TokenKeys interface {
	ListTokenKeys(ctx context.Context, project, token string) ([]api.TokenKey, error)
	AddTokenKey(ctx context.Context, project, token string, key api.TokenKeyCreate) (*api.TokenKey, error)
	DeleteTokenKey(ctx context.Context, project, token, fingerprint string) error
}

// EnsureTokenKey makes the key pair of a private key's file unless it is there, and returns its fingerprint when the
// token has it in the cloud.
func EnsureTokenKey(ctx context.Context, cloud TokenKeys, project, token, file string) (fingerprint string, err error) {
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		if err := writeNewKey(file); err != nil {
			return "", err
		}
	}
	public, fingerprint, err := PublicKey(file)
	if err != nil {
		return "", err
	}
	known, err := cloud.ListTokenKeys(ctx, project, token)
	if err != nil {
		return "", err
	}
	if slices.ContainsFunc(known, func(key api.TokenKey) bool { return key.Fingerprint == fingerprint }) {
		return fingerprint, nil
	}
	_, err = cloud.AddTokenKey(ctx, project, token, api.TokenKeyCreate{PublicKey: public})
	return fingerprint, err
}

func writeNewKey(file string) error {
	key, err := rsa.GenerateKey(rand.Reader, keyBits)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return atomicfile.Write(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// PublicKey gives the public key of a private one's file, as PEM, and its fingerprint: the MD5 of its DER-encoded
// SubjectPublicKeyInfo, as Oracle defines it.
func PublicKey(file string) (public, fingerprint string, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", "", err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return "", "", fmt.Errorf("%s is damaged: it is no PEM file; delete it, and `lab ccm start` makes another", file)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return "", "", fmt.Errorf("%s is damaged: %w; delete it, and `lab ccm start` makes another", file, err)
	}
	private, ok := key.(*rsa.PrivateKey)
	if !ok {
		return "", "", fmt.Errorf("%s holds no RSA key", file)
	}
	der, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	public = string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	return public, identity.Fingerprint(der), err
}
