package spike;

import java.io.File;
import java.io.Serializable;
import java.lang.reflect.Constructor;
import java.net.MalformedURLException;
import java.net.URL;
import java.net.URLClassLoader;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.TaskContext;
import org.apache.spark.api.java.function.FlatMapFunction;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.classic.Dataset;

/**
 * Epochs of rows (key, value) from Spark's JVM straight into a topic, in the order of our protocol: every task attempt
 * writes in a transaction and votes by its id; when all votes are there, each is committed. There is no journal, no
 * mark, no hash and no recovery. Driver and tasks are one JVM: a client of Kafka's can end its own transactions only.
 */
public final class Epochs implements Serializable {
    private static final long serialVersionUID = 1;
    private static final int IDS_PER_PARTITION = 4;
    private static final Map<String, Transaction> OPEN = new ConcurrentHashMap<>();
    private static volatile Constructor<?> kafka;

    private final HashMap<String, Object> settings;
    private final String topic;

    public Epochs(Map<String, Object> settings, String topic) {
        this.settings = new HashMap<>(settings);
        this.topic = topic;
    }

    /** Load Kafka's client from a jar, and `Kafka` with it from a folder: Spark's Kafka sink has a client of its own. */
    public static void load(String jar, String folder) throws MalformedURLException, ReflectiveOperationException {
        URL[] places = {new File(jar).toURI().toURL(), new File(folder).toURI().toURL()};
        ClassLoader loader = new URLClassLoader(places, Epochs.class.getClassLoader());
        kafka = loader.loadClass("spike.Kafka").getConstructor(Map.class, String.class);
    }

    /** Write a batch and commit it; return its rows. */
    public long write(Dataset<Row> batch) {
        FlatMapFunction<Iterator<InternalRow>, Vote> task = this::write;
        List<Vote> votes = batch.queryExecution().toRdd().toJavaRDD().mapPartitions(task).collect();
        votes.forEach(vote -> OPEN.remove(vote.id).commit());
        return votes.stream().mapToLong(vote -> vote.rows).sum();
    }

    private Iterator<Vote> write(Iterator<InternalRow> rows) throws ReflectiveOperationException {
        TaskContext task = TaskContext.get();
        String id = topic + "." + task.partitionId() + "." + task.taskAttemptId() % IDS_PER_PARTITION;
        HashMap<String, Object> own = new HashMap<>(settings);
        own.put("transactional.id", id);
        Transaction transaction = (Transaction) kafka.newInstance(own, topic);
        OPEN.put(id, transaction);
        long count = 0;
        while (rows.hasNext()) {
            InternalRow row = rows.next();
            transaction.send(row.getUTF8String(0).getBytes(), row.getUTF8String(1).getBytes());
            count++;
        }
        transaction.flush();
        return List.of(new Vote(id, count)).iterator();
    }

    private static final class Vote implements Serializable {
        private static final long serialVersionUID = 1;
        private final String id;
        private final long rows;

        Vote(String id, long rows) {
            this.id = id;
            this.rows = rows;
        }
    }
}
