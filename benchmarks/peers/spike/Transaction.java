package spike;

/** A task attempt's open transaction; `Kafka` is one. Its class loader has Kafka's client, and its caller's has none. */
public interface Transaction {
    void send(byte[] key, byte[] value);

    /** Wait until the brokers have every row; fails when one did not get there. */
    void flush();

    /** Commit it, and let go of the producer. */
    void commit();
}
