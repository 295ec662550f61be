import java.io.IOException;
import java.io.OutputStream;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.time.LocalDateTime;
import java.util.Arrays;
import java.util.Collections;
import java.util.Map;
import org.apache.flink.api.common.serialization.Encoder;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.file.sink.FileSink;
import org.apache.flink.connector.jdbc.JdbcExactlyOnceOptions;
import org.apache.flink.connector.jdbc.JdbcExecutionOptions;
import org.apache.flink.connector.jdbc.JdbcStatementBuilder;
import org.apache.flink.connector.jdbc.core.datastream.sink.JdbcSink;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.KafkaSinkBuilder;
import org.apache.flink.core.fs.Path;
import org.apache.flink.formats.common.TimestampFormat;
import org.apache.flink.formats.json.JsonFormatOptions;
import org.apache.flink.formats.json.JsonRowDataSerializationSchema;
import org.apache.flink.formats.parquet.row.ParquetRowDataBuilder;
import org.apache.flink.streaming.api.functions.sink.filesystem.bucketassigners.BasePathBucketAssigner;
import org.apache.flink.streaming.api.functions.sink.filesystem.rollingpolicies.OnCheckpointRollingPolicy;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.types.logical.RowType;
import org.apache.hadoop.conf.Configuration;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.postgresql.xa.PGXADataSource;

/**
 * Where rows go, exactly once; `sink` says what kind:
 *
 * <ul>
 *   <li>`kafka`: columns key and value to `topic` at `brokers`; transactional ids begin with `prefix`, the producer's
 *       own settings are given as `producer.NAME`
 *   <li>`json`, `parquet`: files in folder `target`
 *   <li>`jdbc`: into `table` by XA, at `url` as `user` with `password`
 * </ul>
 */
final class Sinks {
    private static final String PRODUCER = "producer.";

    private Sinks() {}

    static Sink<RowData> of(Map<String, String> job, Columns columns) {
        switch (job.get("sink")) {
            case "kafka":
                return kafka(job);
            case "json":
                return FileSink.forRowFormat(new Path(job.get("target")), new JsonLines(columns.type))
                        .withBucketAssigner(new BasePathBucketAssigner<>())
                        .withRollingPolicy(OnCheckpointRollingPolicy.build())
                        .build();
            case "parquet":
                Configuration snappy = new Configuration();
                snappy.set("parquet.compression", "SNAPPY");
                return FileSink.forBulkFormat(
                                new Path(job.get("target")),
                                ParquetRowDataBuilder.createWriterFactory(columns.type, snappy, true))
                        .withBucketAssigner(new BasePathBucketAssigner<>())
                        .build();
            case "jdbc":
                return jdbc(job, columns);
            default:
                throw new IllegalArgumentException("no such sink: " + job.get("sink"));
        }
    }

    private static Sink<RowData> kafka(Map<String, String> job) {
        String topic = job.get("topic");
        KafkaRecordSerializationSchema<RowData> records =
                (row, context, timestamp) ->
                        new ProducerRecord<>(topic, row.getString(0).toBytes(), row.getString(1).toBytes());
        KafkaSinkBuilder<RowData> sink =
                KafkaSink.<RowData>builder()
                        .setBootstrapServers(job.get("brokers"))
                        .setRecordSerializer(records)
                        .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                        .setTransactionalIdPrefix(job.get("prefix"));
        job.forEach(
                (name, value) -> {
                    if (name.startsWith(PRODUCER)) {
                        sink.setProperty(name.substring(PRODUCER.length()), value);
                    }
                });
        return sink.build();
    }

    private static Sink<RowData> jdbc(Map<String, String> job, Columns columns) {
        String url = job.get("url");
        String user = job.get("user");
        String password = job.get("password");
        String places = String.join(", ", Collections.nCopies(columns.names().size(), "?"));
        String insert = "INSERT INTO " + job.get("table") + " (" + String.join(", ", columns.names()) + ") VALUES ";
        return JdbcSink.<RowData>builder()
                .withQueryStatement(insert + "(" + places + ")", new Bound(columns))
                .withExecutionOptions(JdbcExecutionOptions.builder().withBatchSize(5000).withMaxRetries(0).build())
                .buildExactlyOnce(
                        // PostgreSQL ties a transaction to its session until it is prepared
                        JdbcExactlyOnceOptions.builder().withTransactionPerConnection(true).build(),
                        () -> {
                            PGXADataSource server = new PGXADataSource();
                            server.setUrl(url);
                            server.setUser(user);
                            server.setPassword(password);
                            return server;
                        });
    }

    /** Sets a statement's places from a row. */
    private static final class Bound implements JdbcStatementBuilder<RowData> {
        private static final long serialVersionUID = 1;
        private final Columns columns;

        Bound(Columns columns) {
            this.columns = columns;
        }

        @Override
        public void accept(PreparedStatement statement, RowData row) throws SQLException {
            for (int place = 0; place < row.getArity(); place++) {
                switch (columns.at(place).getTypeRoot()) {
                    case BIGINT:
                        statement.setLong(place + 1, row.getLong(place));
                        break;
                    case DOUBLE:
                        statement.setDouble(place + 1, row.getDouble(place));
                        break;
                    case TIMESTAMP_WITHOUT_TIME_ZONE:
                        LocalDateTime moment = row.getTimestamp(place, 6).toLocalDateTime();
                        statement.setObject(place + 1, moment);
                        break;
                    default:
                        statement.setString(place + 1, row.getString(place).toString());
                }
            }
        }
    }

    /** Flink's own JSON, a row a line. */
    private static final class JsonLines implements Encoder<RowData> {
        private static final long serialVersionUID = 1;
        private final JsonRowDataSerializationSchema json;
        private transient boolean opened;

        JsonLines(RowType type) {
            json = new JsonRowDataSerializationSchema(
                    type, TimestampFormat.ISO_8601, JsonFormatOptions.MapNullKeyMode.FAIL, "null", false, false);
        }

        @Override
        public void encode(RowData row, OutputStream out) throws IOException {
            if (!opened) {
                open();
            }
            byte[] text = json.serialize(row);
            byte[] line = Arrays.copyOf(text, text.length + 1); // one write a row: the stream below has no buffer
            line[text.length] = '\n';
            out.write(line);
        }

        private void open() throws IOException {
            try {
                json.open(null);
            } catch (Exception failure) {
                throw new IOException(failure);
            }
            opened = true;
        }
    }
}
