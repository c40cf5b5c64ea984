package zmq

import (
	"errors"
	"fmt"
	"os"
	"strings"

	zmq4 "github.com/pebbe/zmq4"
)

// Curve says how to talk to publishers that want CURVE. The zero value uses none.
type Curve struct {
	// ServerKey is the public key of every publisher that has none in its Target, as Z85 text of 40 characters.
	ServerKey string
	// PublicKeyFile and SecretKeyFile hold the monitor's own key pair as Z85 text. Without a public key file that key is
	// computed; without either, a pair is made for the life of the process, which suits publishers that let anyone in.
	PublicKeyFile string
	SecretKeyFile string
}

// keys is the monitor's own pair; empty strings: CURVE is not used unless a target wants it.
type keys struct{ public, secret string }

func (c Curve) load() (keys, error) {
	if c.ServerKey != "" {
		if err := checkKey(c.ServerKey); err != nil {
			return keys{}, fmt.Errorf("CURVE server key %w", err)
		}
	}
	if c.SecretKeyFile == "" {
		if c.PublicKeyFile != "" {
			return keys{}, errors.New("CURVE public key file is given without a secret key file: give both or none")
		}
		public, secret, err := zmq4.NewCurveKeypair()
		if err != nil {
			// libzmq was built without CURVE. That matters only to those who want it.
			if c.ServerKey == "" {
				return keys{}, nil
			}
			return keys{}, fmt.Errorf("CURVE key pair: %w: use a libzmq that was built with libsodium", err)
		}
		return keys{public, secret}, nil
	}
	secret, err := readKey(c.SecretKeyFile)
	if err != nil {
		return keys{}, fmt.Errorf("CURVE secret key: %w", err)
	}
	public, err := zmq4.AuthCurvePublic(secret)
	if err != nil {
		return keys{}, fmt.Errorf("CURVE secret key file %s: %w", c.SecretKeyFile, err)
	}
	if c.PublicKeyFile != "" {
		told, err := readKey(c.PublicKeyFile)
		if err != nil {
			return keys{}, fmt.Errorf("CURVE public key: %w", err)
		}
		if told != public {
			return keys{}, fmt.Errorf("CURVE public key file %s does not belong to secret key file %s: give the files of one pair", c.PublicKeyFile, c.SecretKeyFile)
		}
	}
	return keys{public, secret}, nil
}

func readKey(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	key := strings.TrimSpace(string(b))
	if err := checkKey(key); err != nil {
		return "", fmt.Errorf("file %s %w", path, err)
	}
	return key, nil
}

const z85Alphabet = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"

// checkKey says what is wrong with a key. It never shows the key.
func checkKey(key string) error {
	if len(key) != 40 {
		return fmt.Errorf("has %d characters: want the 40 of a Z85 key", len(key))
	}
	if strings.Trim(key, z85Alphabet) != "" {
		return errors.New("has characters that Z85 does not know: want the 40 of a Z85 key")
	}
	return nil
}
