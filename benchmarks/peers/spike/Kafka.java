package spike;

import java.util.Map;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** A producer with one transaction, begun when it is made, as `KafkaWriter` begins one. */
public final class Kafka implements Transaction, Callback {
    private final String topic;
    private final KafkaProducer<byte[], byte[]> producer;
    private volatile Exception failure;

    public Kafka(Map<String, Object> settings, String topic) {
        this.topic = topic;
        Thread thread = Thread.currentThread();
        ClassLoader before = thread.getContextClassLoader();
        thread.setContextClassLoader(Kafka.class.getClassLoader()); // where the client looks for its own classes
        try {
            producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        } finally {
            thread.setContextClassLoader(before);
        }
        producer.initTransactions();
        producer.beginTransaction();
    }

    @Override
    public void send(byte[] key, byte[] value) {
        producer.send(new ProducerRecord<>(topic, key, value), this);
    }

    @Override
    public void onCompletion(RecordMetadata metadata, Exception problem) {
        if (problem != null) {
            failure = problem;
        }
    }

    @Override
    public void flush() {
        producer.flush();
        if (failure != null) {
            throw new IllegalStateException("rows did not reach the brokers", failure);
        }
    }

    @Override
    public void commit() {
        producer.commitTransaction();
        producer.close();
    }
}
